/** One answer: what was reasoned and what was answered, each as text that comes or as its tokens. */

import { el, visible } from '../dom.js';
import { Markdown } from './markdown.js';
import { TokenList, tokensOf } from './tokens.js';

/** @typedef {import('./tokens.js').Token} Token */

const MOST_CHARS = 200_000; // of a text; a browser lays out more too slowly
const MOST_MS = 10; // of all that is drawn in one frame: the rest is in the next ones

/**
 * @typedef {object} Manner  how answers are shown
 * @property {boolean} isMarkdown
 * @property {boolean} isConstrained
 */

/** A text as it was written. */
class Plain {
  constructor() {
    this.shown = document.createTextNode('');
    this.root = el('div', { class: 'text', attrs: { dir: 'auto' } }, this.shown);
  }

  /** @param {string} text */
  append(text) {
    this.shown.appendData(visible(text));
  }

  end() {}

  /** @returns {boolean} whether there is more to do */
  step() {
    return false;
  }
}

/** The frame that is being made, and when its making began. */
const frame = { at: 0, began: 0 };

/** The reasoning of an answer, or the rest of it. */
class Part {
  /** @param {Manner} manner */
  constructor(manner) {
    this.text = '';
    /** @type {Token[]} */
    this.tokens = [];
    this.isEnded = false;
    this.shown = 0; // characters of the text
    this.prose = manner.isMarkdown ? new Markdown() : new Plain();
    this.list = new TokenList(manner.isConstrained);
    this.root = el('div', {}, this.prose.root);
  }

  /** @param {() => boolean} isLate  whether the rest has to wait @returns {boolean} whether there is a rest */
  draw(isLate) {
    if (this.tokens.length) {
      if (!this.list.root.parentNode) this.root.replaceChildren(this.list.root);
      this.list.draw(this.tokens, this.text.slice(0, MOST_CHARS));
      return false;
    }
    const isCut = this.text.length > MOST_CHARS;
    const text = isCut ? `${this.text.slice(0, MOST_CHARS)} … (cut here)` : this.text;
    if (text.length > this.shown) this.prose.append(text.slice(this.shown));
    this.shown = text.length;
    if (this.isEnded) this.prose.end();
    do if (isLate()) return true;
    while (this.prose.step());
    return false;
  }
}

/** What streams have told of one answer. */
export class Answer {
  /** @param {Manner} manner */
  constructor(manner) {
    this.reasoning = new Part(manner);
    this.content = new Part(manner); // what the chat goes on with
    this.manner = manner;
    /** Which of them came last. @type {Part | null} */
    this.current = null;
    /** Tokens of which no text has come yet. @type {Token[]} */
    this.early = [];
    this.finish = '';
    this.closed = false;
    this.steered = 0;
    this.folded = el('details', { class: 'reasoning', attrs: { open: true } }, el('summary', {}, 'Reasoning'), this.reasoning.root);
    this.root = el('div', { class: 'answer', attrs: { dir: 'auto' } }, this.content.root);
    this.isDrawn = true;
  }

  /** @param {any} choice  of a chat's chunk, or of a completion's */
  take(choice) {
    const reasoned = choice.delta?.reasoning_content ?? '';
    const said = choice.delta ? (choice.delta.content ?? '') : choice.text;
    if (reasoned) this.goOn(this.reasoning);
    else if (said) this.goOn(this.content);
    (this.current?.tokens ?? this.early).push(...tokensOf(choice));
    this.reasoning.text += reasoned;
    this.content.text += said;
    if (choice.finish_reason) this.finish = choice.finish_reason;
    if (choice.closed) this.closed = true;
    if (choice.steered) this.steered = choice.steered;
    this.draw();
  }

  /** @param {Part} part  which text has come of */
  goOn(part) {
    if (part === this.current) return;
    if (part === this.reasoning) this.root.prepend(this.folded);
    else this.folded.open = false; // it is complete
    this.current = part;
    part.tokens.push(...this.early.splice(0));
  }

  /** Nothing follows. */
  end() {
    if (this.early.length) this.goOn(this.content);
    this.reasoning.isEnded = true;
    this.content.isEnded = true;
    this.draw();
  }

  /** Many pieces may come between two frames: they are drawn once. */
  draw() {
    if (!this.isDrawn) return;
    this.isDrawn = false;
    requestAnimationFrame((now) => {
      this.isDrawn = true;
      if (frame.at !== now) Object.assign(frame, { at: now, began: performance.now() });
      const isLate = () => performance.now() - frame.began > MOST_MS;
      if (this.reasoning.draw(isLate) || this.content.draw(isLate)) this.draw();
    });
  }

  /** What is kept of it, and sent with the next turn of the chat. @returns {import('./requests.js').Message} */
  message() {
    return { role: 'assistant', content: this.content.text, reasoning: this.reasoning.text, isPlain: !this.manner.isMarkdown };
  }
}

/** An answer that was kept. @param {import('./requests.js').Message} message */
export function answerOf({ content, reasoning, isPlain }) {
  const answer = new Answer({ isMarkdown: !isPlain, isConstrained: false });
  if (reasoning) answer.take({ delta: { reasoning_content: reasoning } });
  answer.take({ delta: { content } });
  answer.end();
  return answer;
}
