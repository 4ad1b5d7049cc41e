/**
 * Answers as Markdown. The library divides a text into tokens, and its tokens become elements here: HTML in an answer
 * is shown as the text that it is, a picture is a link to it, and links lead to other sites only.
 */

import { el, visible } from '../dom.js';
import { Lexer, Tokenizer } from '../vendor/marked.esm.js';

const PIECE = 1000; // characters: a text is read at the multiples of it, however it comes
const READ_AT_ONCE = 300; // of the open block: up to here each new piece has it read again
const MOST_OPEN = 10_000; // characters of the open block and ten for each of its lines, except of code
const MOST_DEPTH = 12; // of blocks within blocks, and of marks within marks
const MOST_MARKS = 300; // of a paragraph: their reader takes the square of their number
const MOST_CELLS = 5000; // of a table: each row has as many as its head
const SCHEMES = ['http:', 'https:', 'mailto:'];

/** @typedef {(Node | string)[]} Nodes */
/** @typedef {import('../vendor/marked.esm.js').Links} Links */

/** A text that comes in pieces; it is shown in steps, each of which takes some milliseconds. */
export class Markdown {
  constructor() {
    this.root = el('div', { class: 'markdown', attrs: { dir: 'auto' } });
    this.text = '';
    this.taken = 0; // characters that were read
    this.reading = new Reading(Object.create(null));
    this.root.append(this.reading.root);
    this.isEnded = false;
    this.isDone = false;
  }

  /** @param {string} text */
  append(text) {
    this.text += visible(text);
  }

  /** Nothing follows. */
  end() {
    this.isEnded = true;
  }

  /** @returns {boolean} whether there is more to do */
  step() {
    const piece = this.text.slice(this.taken, this.taken - (this.taken % PIECE) + PIECE);
    if (piece) {
      this.taken += piece.length;
      this.reading.add(piece, this.taken % PIECE === 0);
      return true;
    }
    if (!this.isEnded || this.isDone) return false;
    this.reading.read(true);
    const { known, links } = this.reading;
    if (Object.keys(known).length < Object.keys(links).length) {
      // Blocks may refer to a link that is defined behind them: all are made again.
      this.reading = new Reading(links);
      this.taken = 0;
      return true;
    }
    this.isDone = true;
    if (!this.reading.root.parentNode) this.root.replaceChildren(this.reading.root);
    return false;
  }
}

/**
 * One reading of a text. Only its last block is read again with a piece, since what stands before it cannot change any
 * more; where it is long, only when it has grown by an eighth, or less where a block may begin or end: until then the
 * new text stands at its end as it was written.
 */
class Reading {
  /** @param {Links} known  links that are defined somewhere in the text */
  constructor(known) {
    this.known = known;
    this.links = Object.assign(Object.create(null), known);
    this.tail = el('div', { class: 'part' });
    this.root = el('div', { class: 'part' }, this.tail);
    this.open = ''; // the text of the block in the tail, and of what follows it
    this.due = 0; // its length at which it is read again
    this.soon = 0; // and that where a block may begin or end
    this.lines = 0; // how much of it are whole lines in which no block ended
    /** What ends the code that it is. @type {RegExp | null} */
    this.fence = null;
  }

  /** @param {string} piece @param {boolean} isWhole  it would end here however the text came */
  add(piece, isWhole) {
    this.open += piece;
    const before = this.open.length - piece.length;
    const isLong = isWhole && !this.fence && this.isLong();
    const isDue = this.fence
      ? piece.includes('\n') && this.fence.test(this.open.slice(this.open.lastIndexOf('\n', before - 1) + 1))
      : isLong || this.open.length >= this.due || (this.open.length >= this.soon && /```|~~~|\n\n/.test(this.open.slice(Math.max(0, before - 2))));
    if (!isDue) return this.show(piece);
    this.read(false);
    if (isLong && !this.fence && this.isLong()) this.cut();
  }

  /** Whether the open block takes too long to read and to lay out. */
  isLong() {
    return this.open.length + 10 * this.open.split('\n').length > MOST_OPEN;
  }

  /** Shows text at the end as it was written. @param {string} piece */
  show(piece) {
    const last = lastText(this.tail);
    if (this.fence && last.data.endsWith('\n') && last.length > 5000) last.parentElement?.after(linesOf(piece));
    else last.appendData(piece);
  }

  /** @param {boolean} isLast  nothing follows */
  read(isLast) {
    let tokens = this.lex(this.open);
    if (this.settle(tokens)) tokens = this.lex(this.open);
    if (isLast) Object.assign(this.links, tokens.links);
    this.tail.replaceChildren(...made(tokens));
    this.fence = fenceOf(this.open);
    const { length } = this.open;
    const isClosed = /(?:[`~]{3}|\n\n)\s*$/.test(this.open.slice(-99)); // what follows is another block, perhaps
    this.soon = length * 1.03;
    this.due = length < READ_AT_ONCE || isClosed ? length : length * 1.125;
  }

  /** Moves blocks out of the tail. @param {any[]} tokens  of what is in it @returns {boolean} whether there were any */
  settle(tokens) {
    const blocks = tokens.filter((token) => token.raw.trim());
    const end = this.open.lastIndexOf('\n') + 1; // only whole lines tell where blocks end
    if (end <= this.lines || (blocks.length < 2 && !blocks.some(isCodeWithEnd))) return false;
    const whole = this.lex(this.open.slice(0, end));
    let last = whole.length - 1; // the last block: lines may still come to it
    while (last > 0 && !whole[last].raw.trim()) last -= 1;
    if (last >= 0 && isCodeWithEnd(whole[last])) last += 1;
    const done = whole.slice(0, Math.max(0, last));
    const text = done.map((token) => token.raw).join('');
    this.lines = end;
    if (!text || !this.open.startsWith(text)) return false;
    Object.assign(this.links, whole.links);
    this.tail.before(...made(done));
    this.open = this.open.slice(text.length);
    this.lines -= text.length;
    return true;
  }

  /** Makes an end of a block that is too long, and takes what follows for another one. */
  cut() {
    const at = this.open.lastIndexOf('\n') + 1 || this.open.lastIndexOf(' ') + 1 || this.open.length;
    this.tail.before(...made(this.lex(this.open.slice(0, at))));
    this.open = this.open.slice(at);
    this.lines = 0;
    this.read(false);
  }

  /** @param {string} text @returns {any[] & { links?: Links }} */
  lex(text) {
    const lexer = new Bounded({ gfm: true, breaks: true, tokenizer: new FewCells() });
    Object.assign(lexer.tokens.links, this.links);
    try {
      return lexer.lex(text);
    } catch {
      return [{ type: 'plain', raw: text }]; // the library gives up: the text is shown all the same
    }
  }
}

/** What ends the code with which a text begins, if that has not come. @param {string} text */
function fenceOf(text) {
  const found = /^ {0,3}(`{3,}(?=[^`\n]*\n)|~{3,})[^\n]*\n/.exec(text);
  if (!found) return null;
  const end = new RegExp(`(?:^|\\n) {0,3}${found[1]}[\`~]* *\\n`);
  return end.test(text.slice(found[0].length)) ? null : end;
}

/** @param {any} token */
function isCodeWithEnd({ type, raw }) {
  return type === 'code' && /^ {0,3}[`~]/.test(raw) && !fenceOf(`${raw}\n`);
}

/** Leaves what would take too long as it was written. */
class Bounded extends Lexer {
  depth = 0;

  /** @param {string} src @param {any} [tokens] @param {boolean} [isClipped] @returns {any} */
  blockTokens(src, tokens = [], isClipped) {
    return this.within(src, tokens, () => super.blockTokens(src, tokens, isClipped));
  }

  /** @param {string} src @param {any} [tokens] @returns {any} */
  inlineTokens(src, tokens = []) {
    const marks = src.match(/[*_~`[\]<!&\\]/g)?.length ?? 0;
    return this.within(src, tokens, marks < MOST_MARKS ? () => super.inlineTokens(src, tokens) : null);
  }

  /** @param {string} src @param {any[]} tokens @param {(() => any[]) | null} read */
  within(src, tokens, read) {
    if (!read || this.depth === MOST_DEPTH) return tokens.push({ type: 'plain', raw: src }), tokens;
    this.depth += 1;
    try {
      return read();
    } finally {
      this.depth -= 1;
    }
  }
}

class FewCells extends Tokenizer {
  /** @param {string} src */
  table(src) {
    const [, head = '', , rows = ''] = this.rules.block.table.exec(src) ?? [];
    return head.split('|').length * rows.split('\n').length > MOST_CELLS ? undefined : super.table(src);
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

/** What a token of each type becomes. @type {Record<string, (token: any) => Nodes>} */
const MAKERS = {
  space: () => [],
  def: () => [],
  heading: (token) => (token.text ? block(el('h4', { class: `depth-${token.depth}` }, ...made(token.tokens))) : [token.raw]),
  paragraph: (token) => block(el('p', {}, ...made(token.tokens))),
  blockquote: (token) => block(el('blockquote', {}, ...made(token.tokens))),
  hr: () => block(el('hr')),
  list: (token) => {
    const items = token.items.map((/** @type {any} */ item) => el('li', {}, ...made(item.tokens)));
    return block(token.ordered ? el('ol', { attrs: { start: token.start } }, ...items) : el('ul', {}, ...items));
  },
  checkbox: (token) => [token.checked ? '☑ ' : '☐ '],
  table: (token) => block(tableOf(token)),
  code: (token) => block(codeOf(token)),
  text: (token) => (token.tokens ? made(token.tokens) : [token.text]),
  escape: (token) => [token.text],
  strong: (token) => [el('strong', {}, ...made(token.tokens))],
  em: (token) => [el('em', {}, ...made(token.tokens))],
  del: (token) => [el('del', {}, ...made(token.tokens))],
  codespan: (token) => [el('code', {}, token.text)],
  br: () => [el('br')],
  html: (token) => (/^<br *\/?>\s*$/i.test(token.raw) ? [el('br')] : asWritten(token)),
  plain: (token) => asWritten(token),
  link: (token) => linkTo(token.href, made(token.tokens)) ?? [token.raw],
  image: (token) => linkTo(token.href, [`Picture: ${token.text || token.href}`]) ?? [token.raw],
};

/** @param {any[]} tokens @returns {Nodes} */
function made(tokens) {
  return tokens.flatMap((token) => MAKERS[token.type]?.(token) ?? [token.raw]);
}

/** @param {any} token @returns {Nodes} */
function asWritten(token) {
  return [el('span', { class: 'text' }, token.raw)];
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
  if (!SCHEMES.includes(url.protocol) || url.origin === location.origin || url.username || url.password) return null;
  const attrs = { href: url.href, title: url.href, target: '_blank', rel: 'noopener noreferrer nofollow' };
  const made = el('a', { attrs }, ...inside);
  for (const inner of made.querySelectorAll('a')) inner.replaceWith(...inner.childNodes);
  if (!made.textContent?.trim()) made.textContent = url.href;
  return [made];
}

/** @param {any} token */
function tableOf(token) {
  /** @param {'th' | 'td'} tag @param {any[]} cells */
  const row = (tag, cells) => el('tr', {}, ...cells.map((cell) => el(tag, { class: `to-${cell.align ?? 'left'}` }, ...made(cell.tokens))));
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
  const lines = token.text.match(/(?:[^\n]*\n){1,100}|[^\n]+/g) ?? [''];
  return el('div', { class: 'code' }, el('p', { class: 'row muted' }, language ?? 'code', button), el('pre', { attrs }, el('code', {}, ...lines.map(linesOf))));
}

/** Some lines of code: a browser lays out those that come without the others. @param {string} text */
function linesOf(text) {
  return el('span', { class: 'lines' }, text);
}
