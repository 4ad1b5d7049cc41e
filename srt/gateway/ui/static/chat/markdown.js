/**
 * Answers as Markdown. The library divides a text into tokens, and its tokens become elements here: HTML in an answer
 * is shown as the text that it is, a picture is a link to it, and links lead to other sites only.
 */

import { el, visible } from '../dom.js';
import { Lexer } from '../vendor/marked.esm.js';

const READ_AT_ONCE = 300; // characters of the open block up to which each piece has it read again
const MOST_OPEN = 10_000; // of the open block; what follows is shown as it was written
const PIECE = 2000; // characters that are taken at a time
const MOST_MS = 1000; // of reading, and for each character so far:
const MOST_MS_EACH = 0.05; // many times what usual texts take; unclosed marks take the square of their number
const MOST_DEPTH = 12; // of blocks within blocks
const SCHEMES = ['http:', 'https:', 'mailto:'];

/** @typedef {(Node | string)[]} Nodes */

/**
 * A text that comes in pieces. Only its last block is read again with a piece, since what stands before it cannot
 * change any more; where it is long, only when it has grown by an eighth, or where a block may begin or end: until then
 * the new text stands at its end as it was written.
 */
export class Markdown {
  constructor() {
    this.root = el('div', { class: 'markdown', attrs: { dir: 'auto' } });
    this.tail = el('div', { class: 'tail' });
    this.root.append(this.tail);
    this.open = ''; // the text of the block in the tail, and of what follows it
    this.due = 0; // its length at which it is read again
    this.lines = 0; // how much of it are whole lines in which no block ended
    this.whole = ''; // as long as it is short
    this.isReferred = false; // whether links are defined anywhere
    this.taken = 0; // characters
    this.spent = 0; // milliseconds
  }

  /** @param {string} text */
  append(text) {
    const shown = visible(text);
    if (this.taken <= MOST_OPEN) this.whole += shown;
    for (let at = 0; at < shown.length; at += PIECE) this.add(shown.slice(at, at + PIECE));
  }

  /** Nothing follows. */
  end() {
    if (this.due < Infinity) this.read();
    if (!this.isReferred || this.taken > MOST_OPEN || this.due === Infinity) return;
    // A link may be defined behind the blocks that refer to it.
    this.open = this.whole;
    this.lines = 0;
    this.root.replaceChildren(this.tail);
    this.read();
  }

  /** @param {string} piece */
  add(piece) {
    this.taken += piece.length;
    this.open += piece;
    if (this.open.length >= this.due || /```|\n\n/.test(piece)) this.read();
    else lastText(this.tail).appendData(piece);
  }

  read() {
    const began = performance.now();
    const end = this.open.lastIndexOf('\n') + 1;
    if (end > this.lines) this.settle(end);
    const tokens = this.lex(this.open);
    this.tail.replaceChildren(...(tokens.length ? made(tokens, 0) : [el('p', { class: 'text' }, this.open)]));
    this.spent += performance.now() - began;
    const isClosed = /[`~]{3}\s*$/.test(this.open); // of code: what follows is none
    this.due = this.open.length < READ_AT_ONCE || isClosed ? 0 : this.open.length * 1.125;
    if (this.open.length <= MOST_OPEN && this.spent < MOST_MS + MOST_MS_EACH * this.taken) return;
    this.due = Infinity;
    this.open = '';
    if (tokens.at(-1)?.type !== 'code') this.tail.append(el('p', { class: 'text' }, ''));
  }

  /** Moves blocks out of the tail. Only whole lines tell where they end. @param {number} end  of the last whole line */
  settle(end) {
    const tokens = this.lex(this.open.slice(0, end));
    let last = tokens.length - 1; // the last block: lines may still come to it
    while (last > 0 && tokens[last].type === 'space') last -= 1;
    const done = tokens.slice(0, Math.max(0, last));
    const text = done.map((token) => token.raw).join('');
    const isSound = this.open.startsWith(text);
    if (isSound) {
      this.tail.before(...made(done, 0));
      this.open = this.open.slice(text.length);
    }
    this.lines = isSound ? end - text.length : end;
  }

  /** @param {string} text */
  lex(text) {
    try {
      const tokens = new Lexer({ gfm: true, breaks: true }).lex(text);
      if (Object.keys(tokens.links).length) this.isReferred = true;
      return tokens;
    } catch {
      return []; // blocks within blocks, too many
    }
  }
}

/** The text at the end of an element. @param {Node} root @returns {Text} */
function lastText(root) {
  let last = root;
  while (last.lastChild) last = last.lastChild;
  if (last instanceof Text) return last;
  const added = document.createTextNode('');
  root.appendChild(added);
  return added;
}

/** What a token of each type becomes. @type {Record<string, (token: any, depth: number) => Nodes>} */
const MAKERS = {
  space: () => [],
  def: () => [],
  heading: (token, depth) => block(el('h4', { class: `depth-${token.depth}` }, ...made(token.tokens, depth))),
  paragraph: (token, depth) => block(el('p', {}, ...made(token.tokens, depth))),
  blockquote: (token, depth) => block(el('blockquote', {}, ...made(token.tokens, depth))),
  hr: () => block(el('hr')),
  list: (token, depth) => {
    const items = token.items.map((/** @type {any} */ item) => el('li', {}, ...made(item.tokens, depth)));
    return block(token.ordered ? el('ol', { attrs: { start: token.start } }, ...items) : el('ul', {}, ...items));
  },
  checkbox: (token) => [token.checked ? '☑ ' : '☐ '],
  table: (token, depth) => block(tableOf(token, depth)),
  code: (token) => block(codeOf(token)),
  text: (token, depth) => (token.tokens ? made(token.tokens, depth) : [token.text]),
  escape: (token) => [token.text],
  strong: (token, depth) => [el('strong', {}, ...made(token.tokens, depth))],
  em: (token, depth) => [el('em', {}, ...made(token.tokens, depth))],
  del: (token, depth) => [el('del', {}, ...made(token.tokens, depth))],
  codespan: (token) => [el('code', {}, token.text)],
  br: () => [el('br')],
  html: (token) => (/^<br *\/?>$/i.test(token.raw) ? [el('br')] : [el('span', { class: 'text' }, token.raw)]),
  link: (token, depth) => linkTo(token.href, made(token.tokens, depth)) ?? [token.raw],
  image: (token) => linkTo(token.href, [`Picture: ${token.text || token.href}`]) ?? [token.raw],
};

/** @param {any[]} tokens @param {number} depth @returns {Nodes} */
function made(tokens, depth) {
  if (depth > MOST_DEPTH) return [tokens.map((token) => token.raw).join('')];
  return tokens.flatMap((token) => MAKERS[token.type]?.(token, depth + 1) ?? [token.raw]);
}

/** A block begins a line in the text of the whole, too. @param {HTMLElement} element @returns {Nodes} */
function block(element) {
  return ['\n', element];
}

/**
 * A link, if it leads to another site: this server's own addresses may do something.
 * @param {string} href
 * @param {Nodes} inside
 * @returns {Nodes | null}
 */
function linkTo(href, inside) {
  if (!URL.canParse(href)) return null;
  const url = new URL(href);
  if (!SCHEMES.includes(url.protocol) || url.origin === location.origin || url.username) return null;
  const attrs = { href: url.href, title: url.href, target: '_blank', rel: 'noopener noreferrer nofollow' };
  return [el('a', { attrs }, ...inside)];
}

/** @param {any} token @param {number} depth */
function tableOf(token, depth) {
  /** @param {'th' | 'td'} tag @param {any[]} cells */
  const row = (tag, cells) => el('tr', {}, ...cells.map((cell) => el(tag, { class: `to-${cell.align ?? 'left'}` }, ...made(cell.tokens, depth))));
  const body = el('tbody', {}, ...token.rows.map((/** @type {any[]} */ cells) => row('td', cells)));
  return el('div', { class: 'scroll', attrs: { tabindex: 0, role: 'group', 'aria-label': 'Table' } }, el('table', {}, el('thead', {}, row('th', token.header)), body));
}

/** @param {any} token */
function codeOf(token) {
  const language = /^[\w+#.-]{1,20}/.exec(token.lang ?? '')?.[0];
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(token.text);
      button.textContent = 'Copied';
    } catch {
      button.textContent = 'Not allowed';
    }
  };
  const button = el('button', { attrs: { type: 'button' }, on: { click: copy } }, 'Copy');
  const attrs = { tabindex: 0, role: 'group', 'aria-label': language ? `Code, ${language}` : 'Code' };
  return el('div', { class: 'code' }, el('p', { class: 'row muted' }, language ?? 'code', button), el('pre', { attrs }, el('code', {}, token.text)));
}
