/** The form of what a request asks for. */

import { el, freshId } from '../dom.js';

/**
 * @typedef {object} Settings
 * @property {'chat' | 'completion'} mode
 * @property {string} system
 * @property {number | null} temperature  null, here and below: the model's
 * @property {number | null} topP
 * @property {number | null} topK  0: all
 * @property {number | null} minP
 * @property {number} maxTokens
 * @property {number | null} seed
 * @property {number} samples
 * @property {string[]} stop
 * @property {'none' | 'regex' | 'json_schema' | 'ebnf'} kind
 * @property {string} constraint
 * @property {boolean} tokens  show each token
 */

const SAVED = 'srt-settings';
export const CONSTRAINTS = {
  none: '',
  regex: '(yes|no), because [a-z ]{3,40}\\.',
  json_schema: '{"type": "object", "properties": {"name": {"type": "string"}, "year": {"type": "integer"}}, "required": ["name", "year"]}',
  ebnf: 'root ::= "answer: " ("yes" | "no")',
};
/** Which field of the form a field of the API is. @type {[RegExp, string][]} */
const FIELDS = [
  [/^(response_format|regex|ebnf|json_schema)/, 'constraint'],
  [/^temperature/, 'temperature'],
  [/^top_p/, 'topP'],
  [/^top_k/, 'topK'],
  [/^min_p/, 'minP'],
  [/^(max_tokens|max_completion_tokens)/, 'maxTokens'],
  [/^seed/, 'seed'],
  [/^n$/, 'samples'],
  [/^stop/, 'stop'],
];

export class SettingsForm {
  constructor() {
    /** @type {Map<string, HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement>} */
    this.fields = new Map();
    /** @type {Map<string, HTMLElement>} */
    this.errors = new Map();
    this.root = el('form', { class: 'panel settings', attrs: { 'aria-label': 'Settings' }, on: { submit: (event) => event.preventDefault() } });
    const choose = el('select', {}, option('chat', 'Chat'), option('completion', 'Completion of a text'));
    this.add('mode', 'Mode', choose);
    this.systemRow = this.add('system', 'System text', el('textarea', { attrs: { rows: 2, dir: 'auto' } }));
    const numbers = el('div', { class: 'numbers' });
    this.add('temperature', 'Temperature', number('', { min: 0, step: 0.1 }), numbers);
    this.add('maxTokens', 'Most tokens', number(256, { min: 1, step: 1 }), numbers);
    this.add('samples', 'Samples', number(1, { min: 1, max: 8, step: 1 }), numbers);
    this.add('seed', 'Seed', number('', { step: 1, placeholder: 'random' }), numbers);
    this.add('topP', 'Top p', number('', { min: 0, max: 1, step: 0.05 }), numbers);
    this.add('topK', 'Top k (0: all)', number('', { min: 0, step: 1 }), numbers);
    this.add('minP', 'Min p', number('', { min: 0, max: 1, step: 0.05 }), numbers);
    this.root.append(numbers);
    this.add('stop', 'Stop at (a text in each line)', el('textarea', { attrs: { rows: 1 } }));
    const kinds = el('select', {}, option('none', 'none'), option('regex', 'Regex'), option('json_schema', 'JSON Schema'), option('ebnf', 'EBNF grammar'));
    this.add('kind', 'Constraint', kinds);
    this.constraintRow = this.add('constraint', 'Text of the constraint', el('textarea', { class: 'mono', attrs: { rows: 4, spellcheck: 'false' } }));
    const tokens = el('input', { attrs: { type: 'checkbox', id: freshId('tokens') } });
    this.fields.set('tokens', tokens);
    this.root.append(el('p', { class: 'check' }, tokens, el('label', { attrs: { for: tokens.id } }, 'Show tokens: probabilities, and where they are from')));
    kinds.addEventListener('change', () => {
      const field = this.field('constraint');
      if (!field.value || Object.values(CONSTRAINTS).includes(field.value)) field.value = CONSTRAINTS[this.values().kind];
    });
    this.restore();
    this.root.addEventListener('input', (event) => this.changed(event.target));
    this.root.addEventListener('change', () => this.changed(null));
    this.changed(null);
  }

  /** @param {string} name @returns {any} */
  field(name) {
    return this.fields.get(name);
  }

  /**
   * @param {string} name
   * @param {string} title
   * @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} field
   * @param {HTMLElement} [parent]
   */
  add(name, title, field, parent = this.root) {
    field.id = freshId(name);
    const error = el('p', { class: 'error', attrs: { id: `${field.id}-error` } });
    error.hidden = true;
    const row = el('div', { class: 'field' }, el('label', { attrs: { for: field.id } }, title), field, error);
    this.fields.set(name, field);
    this.errors.set(name, error);
    parent.append(row);
    return row;
  }

  /** @param {EventTarget | null} target */
  changed(target) {
    const values = this.values();
    this.systemRow.hidden = values.mode !== 'chat';
    this.constraintRow.hidden = values.kind === 'none';
    for (const [name, field] of this.fields) if (field === target || (target === null && name === 'kind')) this.setError(name === 'kind' ? 'constraint' : name, '');
    sessionStorage.setItem(SAVED, JSON.stringify(values));
  }

  restore() {
    try {
      this.fill(JSON.parse(sessionStorage.getItem(SAVED) ?? '{}'));
    } catch {
      // what is kept there is no JSON
    }
  }

  /** Takes these values for those of an example: what shows in its answer is as at first where it has none.
   * @param {Partial<Settings>} values */
  apply(values) {
    this.fill({ temperature: null, kind: 'none', constraint: '', samples: 1, tokens: false, ...values });
    this.root.dispatchEvent(new Event('change'));
  }

  /** @param {Partial<Settings>} values */
  fill(values) {
    for (const [name, value] of Object.entries(values)) {
      const field = this.field(name);
      if (!field) continue;
      if (field.type === 'checkbox') field.checked = value;
      else field.value = Array.isArray(value) ? value.join('\n') : (value ?? '');
    }
  }

  /** @returns {Settings} */
  values() {
    const text = (/** @type {string} */ name) => this.field(name).value;
    const given = (/** @type {string} */ name) => (text(name).trim() === '' ? null : Number(text(name)));
    return {
      mode: /** @type {Settings['mode']} */ (text('mode')),
      system: text('system'),
      temperature: given('temperature'),
      topP: given('topP'),
      topK: given('topK'),
      minP: given('minP'),
      maxTokens: given('maxTokens') ?? 256,
      seed: given('seed'),
      samples: Math.max(1, given('samples') ?? 1),
      stop: text('stop').split('\n').filter(Boolean),
      kind: /** @type {Settings['kind']} */ (text('kind')),
      constraint: text('constraint'),
      tokens: this.field('tokens').checked,
    };
  }

  /**
   * Shows in empty fields what the server takes for them.
   * @param {Record<string, {value: number}>} defaults  by their names in the API
   */
  showDefaults(defaults) {
    for (const [name, { value }] of Object.entries(defaults)) {
      const field = FIELDS.find(([pattern]) => pattern.test(name))?.[1];
      if (field) this.field(field).placeholder = name === 'top_k' ? Math.max(0, value) : value;
    }
  }

  /** Shows an error at the field that the API has named. @param {string | null} param @param {string} message */
  showError(param, message) {
    const found = FIELDS.find(([pattern]) => param && pattern.test(param));
    if (!found) return false;
    this.setError(found[1], message);
    this.field(found[1]).focus();
    return true;
  }

  clearErrors() {
    for (const name of this.errors.keys()) this.setError(name, '');
  }

  /** @param {string} name @param {string} message */
  setError(name, message) {
    const field = this.field(name);
    const error = this.errors.get(name);
    if (!error) return;
    error.textContent = message;
    error.hidden = !message;
    if (message) {
      field.setAttribute('aria-invalid', 'true');
      field.setAttribute('aria-describedby', error.id);
    } else {
      field.removeAttribute('aria-invalid');
      field.removeAttribute('aria-describedby');
    }
  }
}

/** @param {string} value @param {string} title */
function option(value, title) {
  return el('option', { attrs: { value } }, title);
}

/** @param {number | string} value @param {Record<string, any>} attrs */
function number(value, attrs) {
  return el('input', { attrs: { type: 'number', value, ...attrs } });
}
