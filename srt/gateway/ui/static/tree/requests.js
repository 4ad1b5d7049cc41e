/** The requests that run and that wait, and what they share. */

import { el, renew, visible } from '../dom.js';
import { LOCKS, START, TOKENS, UID, pathTo } from './layout.js';

/** @typedef {import('../types.js').Req} Req */
/** @typedef {import('../types.js').Node} Node */

const MOST = 64; // rows

export class Requests {
  /** @param {(uids: Set<number>) => void} mark  frames nodes of the tree */
  constructor(mark) {
    this.mark = mark;
    /** The nodes that each request uses, by its id. @type {Map<string, Set<number>>} */
    this.paths = new Map();
    this.title = el('h3');
    this.body = el('tbody');
    const names = ['Request', 'State', 'Prompt + output', 'From the cache', 'Shares', 'For'];
    const head = el('tr', {}, ...names.map((name) => el('th', { attrs: { scope: 'col' } }, name)));
    const table = el('table', {}, el('caption', { class: 'unseen' }, 'Requests that run and that wait'), el('thead', {}, head), this.body);
    this.root = el('div', { class: 'panel requests scroll', attrs: { tabindex: 0, role: 'region', 'aria-label': 'Requests' } }, this.title, table);
  }

  /** @param {import('../types.js').Queue | undefined} queue @param {Map<number, Node>} nodes */
  show(queue, nodes) {
    const running = queue?.running ?? [];
    const waiting = queue?.waiting ?? [];
    this.title.textContent = `${queue?.num_running ?? 0} running, ${queue?.num_waiting ?? 0} waiting`;
    const focused = /** @type {HTMLElement | null} */ (this.body.contains(document.activeElement) ? document.activeElement : null);
    this.paths.clear();
    renew(this.body, [...running, ...waiting].slice(0, MOST).map((req) => this.row(req, nodes)));
    if (focused?.isConnected) focused.focus(); // it may have been moved
  }

  /** @param {Req} req @param {Map<number, Node>} nodes */
  row(req, nodes) {
    const path = pathTo(nodes, req.node);
    this.paths.set(req.rid, new Set(path.map((node) => node[UID])));
    const shared = path.find((node) => node[LOCKS] > 1);
    const share = shared ? `first ${shared[START] + shared[TOKENS]} tokens, ${shared[LOCKS]} requests` : '–';
    const why = req.why ? `waits: ${req.why}` : req.state;
    const mark = () => this.mark(this.paths.get(req.rid) ?? new Set());
    const on = {
      pointerenter: mark,
      focus: mark,
      pointerleave: () => this.mark(new Set()),
      blur: () => this.mark(new Set()),
    };
    return el(
      'tr',
      { class: req.state, attrs: { tabindex: 0, 'data-key': req.rid }, on },
      el('td', { class: 'mono text' }, visible(req.rid.slice(0, 24)), req.constrained ? ' (constrained)' : ''),
      el('td', {}, why),
      el('td', { class: 'number' }, `${req.prompt} + ${req.output}`),
      el('td', { class: 'number' }, String(req.cached)),
      el('td', {}, share),
      el('td', { class: 'number' }, `${req.age_s.toFixed(1)} s`),
    );
  }
}
