/** The same nodes as a list, for the keyboard and for screen readers. */

import { el, renew, tableHead, visible } from '../dom.js';
import { WORDS, stateOf } from './draw.js';
import { BELOW, LOCKS, MATCHED, START, TOKENS, UID, childrenOf, pathTo } from './layout.js';
import { nameOf } from './texts.js';

/** @typedef {import('../types.js').Node} Node */

const AT_ONCE = 50;

export class NodeList {
  /** @param {(uid: number) => void} zoom  @param {(uid: number) => void} look  somebody looks at this one */
  constructor(zoom, look) {
    this.zoom = zoom;
    this.look = look;
    this.most = AT_ONCE;
    this.focus = 0;
    /** Those that have rows. @type {Node[]} */
    this.shown = [];
    this.path = el('ol', { class: 'path row' });
    this.body = el('tbody');
    this.more = el('button', { attrs: { type: 'button' }, on: { click: () => (this.most += AT_ONCE) } }, 'Show more');
    const head = tableHead('Node', 'Text', '#From', '#Tokens', '#With what is below', '#Matched', 'State');
    const table = el('table', { class: 'nodes' }, el('caption', { class: 'unseen' }, 'Nodes of the tree'), head, this.body);
    const scroll = el('div', { class: 'scroll', attrs: { tabindex: 0, role: 'region', 'aria-label': 'Nodes of the tree' } }, table);
    this.root = el('div', { class: 'panel' }, el('h3', {}, 'Nodes'), el('nav', { attrs: { 'aria-label': 'Path to the chosen node' } }, this.path), scroll, this.more);
  }

  /**
   * @param {Map<number, Node>} nodes
   * @param {number} focus
   * @param {number} since  see stateOf
   * @param {string} replica
   * @param {Map<string, string>} texts
   */
  show(nodes, focus, since, replica, texts) {
    if (focus !== this.focus) this.most = AT_ONCE;
    this.focus = focus;
    const path = pathTo(nodes, focus).reverse();
    this.path.replaceChildren(this.step(0, 'All'), ...path.map((node) => this.step(node[UID], `${node[UID]}`)));
    const below = [...(childrenOf(nodes).get(nodes.has(focus) ? focus : 0) ?? [])].sort((a, b) => b[BELOW] - a[BELOW]);
    const chosen = this.body.contains(document.activeElement) ? document.activeElement?.getAttribute('data-uid') : null;
    this.shown = below.slice(0, this.most);
    renew(this.body, this.shown.map((node) => this.row(node, since, texts.get(nameOf(replica, node)))));
    this.more.hidden = below.length <= this.most;
    if (!chosen || this.body.contains(document.activeElement)) return;
    // One that was opened is in the path now.
    const next = this.body.querySelector(`button[data-uid="${chosen}"]`) ?? this.path.querySelector('li:last-child button');
    /** @type {HTMLElement} */ (next).focus();
  }

  /** @param {number} uid @param {string} title */
  step(uid, title) {
    return el('li', {}, el('button', { attrs: { type: 'button' }, on: { click: () => this.zoom(uid) } }, title));
  }

  /** @param {Node} node @param {number} since @param {string | undefined} text */
  row(node, since, text) {
    const uid = node[UID];
    const state = stateOf(node, since);
    // Not where a press of the mouse focuses: what is said of the node moves the button away from
    // under the pointer, and the press would be no click.
    const seen = (/** @type {any} */ event) => event.target.matches(':focus-visible') && this.look(uid);
    const on = { click: () => this.zoom(uid), focus: seen };
    const button = el('button', { attrs: { type: 'button', 'data-uid': uid }, on }, `Open ${uid}`);
    return el(
      'tr',
      { attrs: { 'data-key': uid, 'data-node': uid, 'data-state': state } },
      el('td', {}, button),
      el('td', { class: 'text mono' }, text === undefined ? '' : visible(text.slice(0, 200))),
      el('td', { class: 'number' }, node[START]),
      el('td', { class: 'number' }, node[TOKENS]),
      el('td', { class: 'number' }, node[BELOW]),
      el('td', { class: 'number' }, node[MATCHED]),
      el('td', {}, state === 'locked' ? `${WORDS.locked} (${node[LOCKS]})` : WORDS[state]),
    );
  }
}
