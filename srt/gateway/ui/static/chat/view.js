/** The chat and the playground. */

import { ApiError, events, getJson, postJson } from '../api.js';
import { el, freshId, visible } from '../dom.js';
import { Answer, answerOf } from './answer.js';
import { asCurl, asLang, asPython } from './copy.js';
import { chatBody, completionBody, streaming, withSystem } from './requests.js';
import { SettingsForm } from './settings.js';
import { promptTokens } from './tokens.js';
import { welcome } from './welcome.js';

/** @typedef {import('./requests.js').Message} Message */
/** @typedef {import('./settings.js').Settings} Settings */

const SAVED = 'srt-chat';
const MOST_SAVED = 500_000; // characters
const LEGEND = [
  ['p1', 'unlikely'],
  ['p9', 'likely'],
  ['from-j', 'forced by the constraint'],
  ['from-d', 'guessed'],
  ['from-c', 'appended to close'],
  ['from-cache', 'prompt token from the cache'],
];

/** @param {HTMLElement} root @param {import('../types.js').Context} context @returns {import('../types.js').View} */
export function mountChat(root, context) {
  const view = new ChatView(root, context);
  return { shown: () => view.input.focus(), hidden: () => {} };
}

class ChatView {
  /** @param {HTMLElement} root @param {import('../types.js').Context} context */
  constructor(root, context) {
    this.context = context;
    /** @type {Message[]} */
    this.messages = [];
    /** @type {AbortController | null} */
    this.running = null;
    this.lastPrompt = '';
    this.takesChats = true;
    this.settings = new SettingsForm();
    this.log = el('div', { class: 'log', attrs: { role: 'log', 'aria-label': 'Messages', 'aria-live': 'off' } });
    this.isAtEnd = true; // of the messages; kept in sight as they grow
    this.growth = new ResizeObserver(() => {
      if (this.isAtEnd) this.log.scrollTop = this.log.scrollHeight;
    });
    this.scrolled = 0;
    this.log.addEventListener('scroll', () => this.look());
    this.log.addEventListener('click', () => (this.isAtEnd = false)); // something is opened: it stays where it is
    this.input = el('textarea', { attrs: { id: freshId('message'), rows: 3, dir: 'auto' } });
    this.error = el('p', { class: 'error', attrs: { role: 'alert' } });
    this.sendButton = el('button', { class: 'main', attrs: { type: 'submit' } }, 'Send');
    this.stopButton = this.button('Stop', () => this.running?.abort());
    this.againButton = this.button('Regenerate', () => this.regenerate());
    this.inputLabel = el('label', { attrs: { for: this.input.id } }, 'Message');
    this.copied = el('span', { class: 'muted', attrs: { role: 'status' } });
    this.legendNote = el('span', { class: 'muted' }, 'Colours are probabilities without the constraint.');
    this.legend = el('p', { class: 'legend row' }, ...LEGEND.map(([name, title]) => el('span', { class: `token ${name}` }, title)), this.legendNote);
    this.welcome = welcome((message, settings) => this.tryOut(message, settings));
    const buttons = el('p', { class: 'row' }, this.sendButton, this.stopButton, this.againButton, this.button('Clear', () => this.clear()));
    const copies = el('p', { class: 'row' }, el('span', { class: 'muted' }, 'Copy the request as'), this.copyButton('curl', asCurl), this.copyButton('Python', asPython), this.copyButton('lang', asLang), this.copied);
    const composer = el('form', { class: 'composer', on: { submit: (event) => this.submit(event) } }, this.inputLabel, this.input, this.error, buttons);
    this.input.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) this.submit(event);
    });
    const side = el('details', { class: 'side', attrs: { open: innerWidth > 800 } }, el('summary', {}, 'Settings'), this.settings.root);
    root.append(el('h2', { class: 'unseen' }, 'Chat and playground'), side, el('div', { class: 'panel talk' }, this.legend, this.log, composer, copies));
    this.settings.root.addEventListener('change', () => this.refresh());
    context.keys.addEventListener('changed', () => this.showDefaults());
    this.restore();
    this.refresh();
    this.showDefaults();
  }

  async showDefaults() {
    const headers = this.context.keys.chatHeaders();
    try {
      const info = await getJson('/server_info', headers);
      this.settings.showDefaults(info.default_sampling_params);
      this.takesChats = (await getJson('/tokenizer_info', headers)).chat_template !== null;
    } catch {
      // without a key: the fields say nothing then
    }
  }

  /** @param {string} title @param {() => void} action */
  button(title, action) {
    return el('button', { attrs: { type: 'button' }, on: { click: action } }, title);
  }

  refresh() {
    const { mode, tokens, kind } = this.settings.values();
    this.inputLabel.textContent = mode === 'chat' ? 'Message' : 'Text to complete';
    this.legend.hidden = !tokens;
    this.legendNote.hidden = kind === 'none';
    if (!this.log.hasChildNodes()) this.log.append(this.welcome);
    const busy = this.running !== null;
    this.sendButton.disabled = busy;
    this.stopButton.disabled = !busy;
    this.againButton.disabled = busy || (mode === 'chat' ? !this.messages.some((each) => each.role === 'user') : !this.lastPrompt);
  }

  /** @param {Event} event */
  submit(event) {
    event.preventDefault();
    if (this.running) return;
    const settings = this.settings.values();
    const text = this.input.value;
    if (!text) {
      this.showError(new ApiError('write something first', 0));
      return;
    }
    if (settings.mode === 'completion') {
      this.lastPrompt = text;
      this.show('prompt', text);
    } else {
      this.messages.push({ role: 'user', content: text });
      this.show('user', text);
      this.input.value = '';
    }
    this.ask(settings, () => this.takeBack(settings));
  }

  /** @param {string} message @param {Partial<Settings>} settings */
  tryOut(message, settings) {
    this.settings.apply({ mode: this.takesChats ? 'chat' : 'completion', ...settings });
    this.input.value = message;
    this.sendButton.click();
    this.input.focus(); // the button of the example is gone
  }

  regenerate() {
    const settings = this.settings.values();
    /** @type {Message[]} */
    const messages = [];
    /** @type {Element[]} */
    const cards = [];
    while (settings.mode === 'chat' && this.messages[this.messages.length - 1]?.role === 'assistant') {
      messages.unshift(...this.messages.splice(-1));
      const card = this.log.lastElementChild;
      if (card) cards.unshift(card);
      card?.remove();
    }
    this.ask(settings, () => {
      this.messages.push(...messages);
      this.log.append(...cards);
    });
  }

  clear() {
    this.running?.abort();
    this.messages = [];
    this.lastPrompt = '';
    this.log.replaceChildren();
    this.save();
    this.refresh();
    this.input.focus();
  }

  /** @param {Settings} settings @param {() => void} undo  if no answer comes */
  async ask(settings, undo) {
    this.error.textContent = '';
    this.isAtEnd = true;
    this.settings.clearErrors();
    const controller = new AbortController();
    this.running = controller;
    this.refresh();
    /** @type {Answer[]} */
    const answers = [];
    const card = el('article', { class: 'turn assistant', attrs: { 'aria-label': 'Answer' } });
    const isConstrained = settings.kind !== 'none';
    const manner = { isMarkdown: settings.mode === 'chat' && !isConstrained, isConstrained };
    const columns = el('div', { class: 'columns' });
    const facts = el('p', { class: 'facts muted' });
    card.append(el('h3', {}, settings.mode === 'chat' ? 'Assistant' : 'Completion'), columns, facts);
    const timing = { began: performance.now(), first: 0, last: 0, usage: /** @type {any} */ (null) };
    const isChat = settings.mode === 'chat';
    const log = this.messages; // another one, once somebody has cleared it
    const messages = [...log];
    try {
      const body = isChat ? chatBody(settings, messages) : completionBody(settings, this.lastPrompt);
      const path = isChat ? '/v1/chat/completions' : '/v1/completions';
      for await (const chunk of events(path, streaming(body, settings), this.context.keys.chatHeaders(), controller.signal)) {
        if (!card.isConnected && this.messages === log) this.add(card);
        for (const choice of chunk.choices) this.take(answers, columns, choice, settings, manner, timing);
        if (chunk.usage) timing.usage = chunk.usage;
      }
      facts.textContent = factsOf(answers, timing);
      this.context.announce('The answer is complete.');
    } catch (error) {
      if (controller.signal.aborted) facts.textContent = 'Stopped.';
      else this.showError(error);
    } finally {
      this.running = null;
      for (const answer of answers) answer.end();
    }
    if (this.messages !== log) return this.refresh();
    if (!answers.length) undo();
    else if (isChat) log.push(answers[0].message());
    this.save();
    this.refresh();
    if (settings.tokens && timing.usage) await this.showPrompt(card, settings, messages, timing.usage);
  }

  /**
   * @param {Answer[]} answers
   * @param {HTMLElement} columns
   * @param {any} choice
   * @param {Settings} settings
   * @param {import('./answer.js').Manner} manner
   * @param {{first: number, last: number}} timing
   */
  take(answers, columns, choice, settings, manner, timing) {
    timing.last = performance.now();
    if (!timing.first && (choice.text || choice.delta?.content || choice.delta?.reasoning_content)) timing.first = timing.last;
    while (answers.length <= choice.index) {
      const answer = new Answer(manner);
      const goesOn = settings.mode === 'chat' && answers.length === 0 ? ', with which the chat goes on' : '';
      const title = settings.samples > 1 ? el('h4', {}, `Sample ${answers.length + 1}${goesOn}`) : null;
      columns.append(el('div', { class: 'column' }, title, answer.root));
      answers.push(answer);
    }
    answers[choice.index].take(choice);
  }

  /** A message that was refused goes back to where it was written. @param {Settings} settings */
  takeBack(settings) {
    const last = this.messages[this.messages.length - 1];
    if (settings.mode === 'chat' && last?.role === 'user') {
      this.messages.pop();
      if (!this.input.value) this.input.value = last.content;
    }
    this.log.lastElementChild?.remove();
  }

  /** @param {HTMLElement} card @param {Settings} settings @param {Message[]} messages @param {any} usage */
  async showPrompt(card, settings, messages, usage) {
    const body = settings.mode === 'chat' ? { messages: withSystem(settings, messages) } : { prompt: this.lastPrompt };
    try {
      const found = await postJson('/tokenize', { ...body, return_token_strs: true }, this.context.keys.chatHeaders());
      card.append(promptTokens(found.token_strs, usage.prompt_tokens_details?.cached_tokens ?? 0));
    } catch (error) {
      this.showError(error);
    }
  }

  /** @param {unknown} error */
  showError(error) {
    const message = error instanceof Error ? error.message : String(error);
    const isSchema = error instanceof SyntaxError;
    const param = isSchema ? 'json_schema' : error instanceof ApiError ? error.param : null;
    if (this.settings.showError(param, isSchema ? `no JSON: ${message}` : message)) {
      this.context.announce(message);
      const side = this.settings.root.closest('details');
      if (side) side.open = true;
      return;
    }
    const isKey = error instanceof ApiError && error.status === 401;
    this.error.textContent = isKey ? `${message}: it goes in with the button "Keys"` : message;
  }

  /** @param {string} role @param {string} text @param {HTMLElement} [body]  of an answer */
  show(role, text, body) {
    const titles = { user: 'You', assistant: 'Assistant', prompt: 'Text' };
    const shown = text.length > 20_000 ? `${text.slice(0, 20_000)} … (${text.length} characters in all)` : text;
    const card = el('article', { class: `turn ${role}` }, el('h3', {}, titles[/** @type {keyof typeof titles} */ (role)]), body ?? el('div', { class: 'text', attrs: { dir: 'auto' } }, visible(shown)));
    this.welcome.remove();
    this.add(card);
  }

  /** Whoever scrolls up reads there. */
  look() {
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    if (scrollHeight - scrollTop - clientHeight < 40) this.isAtEnd = true;
    else if (scrollTop < this.scrolled) this.isAtEnd = false;
    this.scrolled = scrollTop;
  }

  /** @param {HTMLElement} card  a message */
  add(card) {
    this.log.append(card);
    this.growth.observe(card);
  }

  /** @param {string} name @param {(asked: import('./copy.js').Asked) => string} write */
  copyButton(name, write) {
    return this.button(name, async () => {
      const { keys } = this.context;
      const settings = this.settings.values();
      const typed = this.input.value;
      const messages = this.messages.filter((each, index) => each.role === 'user' || index < this.messages.length - 1);
      if (typed && settings.mode === 'chat') messages.push({ role: 'user', content: typed });
      try {
        const text = write({ settings, messages, prompt: typed || this.lastPrompt, url: location.origin, hasKey: Boolean(keys.apiKey) });
        await navigator.clipboard.writeText(text);
        this.copied.textContent = `Copied as ${name}.`;
      } catch (error) {
        this.showError(error);
      }
    });
  }

  save() {
    const text = JSON.stringify(this.messages);
    if (text.length <= MOST_SAVED) sessionStorage.setItem(SAVED, text);
  }

  restore() {
    try {
      this.messages = JSON.parse(sessionStorage.getItem(SAVED) ?? '[]');
    } catch {
      this.messages = [];
    }
    for (const each of this.messages) this.show(each.role, each.content, each.role === 'assistant' ? answerOf(each).root : undefined);
  }
}

/** @param {Answer[]} answers @param {{began: number, first: number, last: number, usage: any}} timing */
function factsOf(answers, timing) {
  const parts = [];
  const { usage } = timing;
  if (timing.first) parts.push(`first text after ${Math.round(timing.first - timing.began)} ms`);
  if (usage) {
    const seconds = (timing.last - timing.first) / 1000;
    parts.push(`${usage.completion_tokens} tokens`);
    if (seconds > 0.05) parts.push(`${Math.round(usage.completion_tokens / seconds)} tokens/s`);
    parts.push(`${usage.prompt_tokens_details?.cached_tokens ?? 0} of ${usage.prompt_tokens} prompt tokens from the cache`);
  }
  const ends = [...new Set(answers.map((each) => each.finish).filter(Boolean))];
  parts.push(`ended by ${ends.join(', ')}`);
  const closed = answers.filter((each) => each.closed).length;
  if (closed) parts.push(`closed to fit the limit: ${closed}`);
  return parts.join(' · ');
}
