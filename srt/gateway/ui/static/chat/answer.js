/** One answer: its text as it comes, or its tokens. */

import { el, freshId, visible } from '../dom.js';

const MOST_TOKENS = 3000; // shown one by one
const MOST_CHARS = 200_000; // of a text; a browser lays out more too slowly
const ORIGINS = { j: 'forced by the constraint', d: 'guessed, and right', c: 'appended to close the output', s: 'sampled' };

/**
 * @typedef {object} Token
 * @property {string} token
 * @property {number | null} logprob
 * @property {[string, number][]} top
 * @property {string} origin  a letter of ORIGINS
 */

/** What streams have told of one answer. */
export class Answer {
  constructor() {
    this.text = ''; // all that is shown
    this.content = ''; // without what it has reasoned: what the chat goes on with
    /** @type {Token[]} */
    this.tokens = [];
    this.finish = '';
    this.closed = false;
    this.steered = 0;
    this.root = el('div', { class: 'answer text', attrs: { dir: 'auto' } });
    this.list = el('div', { class: 'tokens mono', attrs: { role: 'group', 'aria-label': 'Tokens; arrow keys go from one to the next' } });
    this.tail = document.createTextNode('');
    this.plain = document.createTextNode('');
    this.root.append(this.plain);
    this.shown = 0; // characters of the text
    this.settled = ''; // the text of the tokens
    this.isDrawn = true;
    this.list.addEventListener('keydown', (event) => move(this.list, event));
  }

  /** @param {any} choice  of a chat's chunk, or of a completion's */
  take(choice) {
    this.content += choice.delta ? (choice.delta.content ?? '') : choice.text;
    this.text += choice.delta ? (choice.delta.reasoning_content ?? '') + (choice.delta.content ?? '') : choice.text;
    const origins = choice.token_origins ?? '';
    tokensOf(choice).forEach((token, index) => {
      token.origin = origins[index] ?? 's';
      this.tokens.push(token);
    });
    if (choice.finish_reason) this.finish = choice.finish_reason;
    if (choice.closed) this.closed = true;
    if (choice.steered) this.steered = choice.steered;
    this.draw();
  }

  /** Many pieces may come between two frames: they are drawn once. */
  draw() {
    if (!this.isDrawn) return;
    this.isDrawn = false;
    requestAnimationFrame(() => {
      this.isDrawn = true;
      if (this.tokens.length) this.drawTokens();
      else this.drawText();
    });
  }

  drawText() {
    const text = this.text.length > MOST_CHARS ? `${this.text.slice(0, MOST_CHARS)} … (cut here)` : this.text;
    const more = visible(text.slice(this.shown));
    this.plain.appendData(more);
    this.shown = text.length;
  }

  drawTokens() {
    if (!this.list.isConnected) {
      this.plain.data = '';
      this.list.append(this.tail);
      this.root.append(this.list);
    }
    const fragment = document.createDocumentFragment();
    for (let i = this.list.childElementCount; i < Math.min(this.tokens.length, MOST_TOKENS); i += 1) {
      fragment.append(tokenElement(this.tokens[i], i === 0));
      this.settled += this.tokens[i].token;
    }
    this.list.insertBefore(fragment, this.tail);
    // Text that is sent before its tokens are settled: a constraint may divide it otherwise.
    const rest = this.text.startsWith(this.settled) ? this.text.slice(this.settled.length) : '';
    this.tail.data = visible(rest.slice(0, MOST_CHARS));
  }
}

/** @param {any} choice @returns {Token[]} */
function tokensOf(choice) {
  const found = choice.logprobs;
  if (!found) return [];
  if (found.content) {
    return found.content.map((/** @type {any} */ each) => ({
      token: each.token,
      logprob: each.logprob,
      top: each.top_logprobs.map((/** @type {any} */ other) => [other.token, other.logprob]),
      origin: 's',
    }));
  }
  return found.tokens.map((/** @type {string} */ token, /** @type {number} */ index) => ({
    token,
    logprob: found.token_logprobs[index],
    top: Object.entries(found.top_logprobs?.[index] ?? {}),
    origin: 's',
  }));
}

/** @param {Token} token @param {boolean} isFirst */
function tokenElement(token, isFirst) {
  const chance = token.logprob === null ? 1 : Math.exp(token.logprob);
  const shade = Math.min(9, Math.floor(chance * 10));
  const attrs = { tabindex: isFirst ? 0 : -1, 'data-origin': token.origin, role: 'button', 'aria-label': `${token.token}, ${percent(chance)}` };
  const made = el('span', { class: `token p${shade} from-${token.origin}`, attrs }, visible(token.token));
  for (const name of ['pointerenter', 'focus']) made.addEventListener(name, () => showTip(made, token, chance));
  for (const name of ['pointerleave', 'blur']) made.addEventListener(name, hideTip);
  return made;
}

/** @param {HTMLElement} list @param {KeyboardEvent} event */
function move(list, event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const now = /** @type {HTMLElement} */ (event.target);
  if (event.key === 'Escape') hideTip();
  if (!step) return;
  const next = /** @type {HTMLElement | null} */ (step > 0 ? now.nextElementSibling : now.previousElementSibling);
  if (!next) return;
  event.preventDefault();
  now.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

const tip = el('div', { class: 'tip panel', attrs: { role: 'tooltip', id: freshId('tip') } });
tip.hidden = true;

/** @param {HTMLElement} at @param {Token} token @param {number} chance */
function showTip(at, token, chance) {
  const rows = token.top.map(([text, logprob]) => el('tr', {}, el('td', { class: 'mono text' }, visible(text)), el('td', { class: 'number' }, percent(Math.exp(logprob)))));
  const origin = ORIGINS[/** @type {keyof typeof ORIGINS} */ (token.origin)] ?? token.origin;
  tip.replaceChildren(
    el('p', { class: 'mono text' }, visible(JSON.stringify(token.token))),
    el('p', {}, `${percent(chance)}, ${origin}`),
    el('table', {}, el('caption', {}, 'Likeliest here'), el('tbody', {}, ...rows)),
  );
  tip.hidden = false;
  at.setAttribute('aria-describedby', tip.id);
  (at.closest('section') ?? document.body).append(tip);
  const place = at.getBoundingClientRect();
  const size = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(place.left, innerWidth - size.width - 8));
  const below = place.bottom + 6 + size.height < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? place.bottom + 6 : Math.max(4, place.top - size.height - 6)}px`;
}

function hideTip() {
  tip.hidden = true;
}

/** @param {number} chance */
function percent(chance) {
  return chance >= 0.0995 ? `${Math.round(chance * 100)} %` : `${(chance * 100).toPrecision(2)} %`;
}

/** The prompt's tokens, with those from the cache marked. @param {string[]} strs @param {number} cached */
export function promptTokens(strs, cached) {
  const shown = strs.slice(0, MOST_TOKENS).map((text, index) => el('span', { class: index < cached ? 'token from-cache' : 'token' }, visible(text)));
  const more = strs.length > MOST_TOKENS ? ` … ${strs.length - MOST_TOKENS} more` : '';
  const summary = `Prompt: ${cached} of ${strs.length} tokens from the cache`;
  return el('details', { class: 'prompt' }, el('summary', {}, summary), el('div', { class: 'tokens mono text' }, ...shown, more));
}
