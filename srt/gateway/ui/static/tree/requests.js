/** The requests that run and that wait, and what they share. */

import { el, renew, tableHead, visible } from '../dom.js';
import { LOCKS, START, TOKENS, UID, pathTo } from './layout.js';

/** @typedef {import('../types.js').Req} Req */
/** @typedef {import('../types.js').Node} Node */

const MOST = 64; // rows

export class Requests {
  /** @param {(uids: Set<number>) => void} mark  frames nodes of the tree */
  constructor(mark) {
    this.mark = mark;
    /** The nodes that each request uses, by its row. @type {Map<string, Set<number>>} */
    this.paths = new Map();
    this.title = el('h3');
    this.body = el('tbody');
    const head = tableHead('Request', 'State', '#Prompt + output', '#From the cache', 'Shares', '#For');
    const table = el('table', {}, el('caption', { class: 'unseen' }, 'Requests that run and that wait'), head, this.body);
    this.root = el('div', { class: 'panel requests scroll', attrs: { tabindex: 0, role: 'region', 'aria-label': 'Requests' } }, this.title, table);
  }

  /** @param {import('../types.js').Queue | undefined} queue @param {Map<number, Node>} nodes */
  show(queue, nodes) {
    const running = queue?.running ?? [];
    const waiting = queue?.waiting ?? [];
    this.title.textContent = `${queue?.num_running ?? 0} running, ${queue?.num_waiting ?? 0} waiting`;
    const focused = /** @type {HTMLElement | null} */ (this.body.contains(document.activeElement) ? document.activeElement : null);
    this.paths.clear();
    const reqs = [...running, ...waiting].slice(0, MOST);
    const keys = distinct(reqs.map((req) => req.rid));
    renew(this.body, reqs.map((req, index) => this.row(req, keys[index], nodes)));
    if (focused?.isConnected) focused.focus(); // it may have been moved
  }

  /** @param {Req} req @param {string} key @param {Map<number, Node>} nodes */
  row(req, key, nodes) {
    const path = pathTo(nodes, req.node);
    this.paths.set(key, new Set(path.map((node) => node[UID])));
    const shared = path.find((node) => node[LOCKS] > 1);
    const share = shared ? `first ${shared[START] + shared[TOKENS]} tokens, ${shared[LOCKS]} requests` : '–';
    const why = req.why ? `waits: ${req.why}` : req.state;
    const mark = () => this.mark(this.paths.get(key) ?? new Set());
    const on = {
      pointerenter: mark,
      focus: mark,
      pointerleave: () => this.mark(new Set()),
      blur: () => this.mark(new Set()),
    };
    return el(
      'tr',
      { class: req.state, attrs: { tabindex: 0, 'data-key': key }, on },
      el('td', { class: 'mono text' }, visible(req.rid.slice(0, 24)), req.constrained ? ' (constrained)' : ''),
      el('td', {}, why),
      el('td', { class: 'number' }, `${req.prompt} + ${req.output}`),
      el('td', { class: 'number' }, String(req.cached)),
      el('td', {}, share),
      el('td', { class: 'number' }, `${req.age_s.toFixed(1)} s`),
    );
  }
}

/** The ids with their places among equal ones: samples of one request, and the continuations of a `select`, share one.
 * @param {string[]} rids */
function distinct(rids) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  return rids.map((rid) => {
    const count = counts.get(rid) ?? 0;
    counts.set(rid, count + 1);
    return `${count} ${rid}`;
  });
}
