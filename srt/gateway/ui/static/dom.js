/** Making elements. What comes from a server is put in as text, never as HTML. */

/**
 * @typedef {object} Options
 * @property {string} [class]
 * @property {Record<string, string | number | boolean | null | undefined>} [attrs]  true: present; false, null: absent
 * @property {Record<string, (event: any) => void>} [on]
 */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Options} [options]
 * @param {...(Node | string | number | null | undefined)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  if (options.class) made.className = options.class;
  for (const [name, value] of Object.entries(options.attrs ?? {})) {
    if (value === true) made.setAttribute(name, '');
    else if (value !== false && value != null) made.setAttribute(name, String(value));
  }
  for (const [name, handler] of Object.entries(options.on ?? {})) made.addEventListener(name, handler);
  for (const child of children) if (child != null) made.append(typeof child === 'number' ? String(child) : child);
  return made;
}

/** The element of this id, which is there. @param {string} id @returns {HTMLElement} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element #${id}`);
  return found;
}

/**
 * The head of a table. A name that begins with # is that of a column of numbers, and stands right as they do.
 * @param {...string} names
 */
export function tableHead(...names) {
  const cells = names.map((name) => el('th', { class: name.startsWith('#') ? 'number' : undefined, attrs: { scope: 'col' } }, name.replace(/^#/, '')));
  return el('thead', {}, el('tr', {}, ...cells));
}

/**
 * Makes the rows of a table be those that are wanted, each of which has a `data-key` of its own. A row that is there
 * stays, under the pointer and the reader's eyes, with its handlers; only cells that differ are put into it.
 * @param {HTMLElement} body
 * @param {HTMLElement[]} wanted
 */
export function renew(body, wanted) {
  const there = new Map([...body.children].map((row) => [row.getAttribute('data-key'), row]));
  const rows = wanted.map((row) => {
    const key = row.getAttribute('data-key');
    const known = there.get(key);
    if (!known) return row;
    there.delete(key);
    for (const { name, value } of row.attributes) if (known.getAttribute(name) !== value) known.setAttribute(name, value);
    [...row.children].forEach((cell, at) => {
      if (!cell.isEqualNode(known.children[at])) known.children[at].replaceWith(cell);
    });
    return known;
  });
  const kept = new Set(rows);
  for (const row of [...body.children]) if (!kept.has(/** @type {HTMLElement} */ (row))) row.remove();
  rows.forEach((row, at) => {
    if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
  });
}

let numbers = 0;

/** An id that no other element has. @param {string} name */
export function freshId(name) {
  numbers += 1;
  return `${name}-${numbers}`;
}

/** Control characters as their pictures, so that they can be seen; line ends and tabs stay. @param {string} text */
export function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (char) => {
    const code = char.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? '\u2421' : `\u27e8U+${code.toString(16).toUpperCase()}\u27e9`;
  });
}

/** A number that is easy to read. @param {number} value @param {number} [digits] */
export function short(value, digits = 0) {
  if (!Number.isFinite(value)) return '–';
  if (Math.abs(value) >= 1e9) return `${(value / 1e9).toFixed(1)}G`;
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (Math.abs(value) >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  return value.toFixed(digits);
}
