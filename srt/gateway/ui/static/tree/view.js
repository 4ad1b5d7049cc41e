/** The radix tree while it works. */

import { el, freshId, short, visible } from '../dom.js';
import { ROW, STATES, WORDS, draw, paletteOf, stateOf } from './draw.js';
import { BELOW, LOCKS, Layout, MATCHED, START, TOKENS, UID, layout, pathTo, withGrowing } from './layout.js';
import { NodeList } from './nodes.js';
import { Requests } from './requests.js';
import { Texts } from './texts.js';

/** @typedef {import('../types.js').Node} Node */

const HIT_S = 5; // a match is new for so long
const LIST_MS = 500; // between two writings of the lists
const LABELS = 40; // texts that are asked for by themselves
const SEARCHED = 100; // texts that a search asks for
const LEAST_ROWS = 4;

/** @param {HTMLElement} root @param {import('../types.js').Context} context @returns {import('../types.js').View} */
export function mountTree(root, context) {
  const view = new TreeView(root, context);
  const show = (/** @type {boolean} */ isShown) => {
    view.isShown = isShown;
    view.resize();
  };
  return { shown: () => show(true), hidden: () => show(false) };
}

class TreeView {
  /** @param {HTMLElement} root @param {import('../types.js').Context} context */
  constructor(root, context) {
    this.feed = context.feed;
    this.texts = new Texts(context.keys);
    this.replica = 0;
    this.focus = 0;
    /** The moment that is shown; null: now. @type {import('../feed.js').TreeState['moments'][number] | null} */
    this.moment = null;
    this.isDue = false;
    this.isShown = false;
    this.listedAt = 0;
    this.isLooking = 0;
    this.canvas = el('canvas', { attrs: { role: 'img', tabindex: -1 } });
    const ctx = this.canvas.getContext('2d');
    if (!ctx) throw new Error('no canvas');
    this.ctx = ctx;
    /** @type {import('./draw.js').Scene} */
    this.scene = { boxes: new Layout(), width: 0, height: 0, since: 0, palette: paletteOf(root), marked: new Set(), under: 0, labels: this.texts.known, replica: '0', ghosts: [] };
    this.detail = el('p', { class: 'detail text', attrs: { 'aria-live': 'off' } }, 'Point at a block, or choose a node in the list.');
    this.sum = el('p', { class: 'muted' });
    this.log = el('ul', { class: 'evictions' });
    this.requests = new Requests((uids) => this.mark(uids));
    this.list = new NodeList((uid) => this.zoom(uid), (uid) => this.look(uid));
    this.build(root);
    this.connect();
  }

  /** @param {HTMLElement} root */
  build(root) {
    const replica = freshId('replica');
    this.replicas = el('select', { attrs: { id: replica }, on: { change: () => this.choose() } });
    this.replicaRow = el('span', { class: 'row' }, el('label', { attrs: { for: replica } }, 'Replica'), this.replicas);
    this.search = el('input', { attrs: { type: 'search', size: 26, id: freshId('search'), placeholder: 'text, or a node’s number' } });
    const search = el('form', { class: 'row', on: { submit: (event) => this.find(event) } }, el('label', { attrs: { for: this.search.id } }, 'Find'), this.search, el('button', { attrs: { type: 'submit' } }, 'Find'));
    this.found = el('span', { class: 'muted', attrs: { role: 'status' } });
    this.slider = el('input', { attrs: { type: 'range', min: 0, max: 1, value: 1, disabled: true, id: freshId('moment') }, on: { input: () => this.slide() } });
    this.when = el('output', { attrs: { for: this.slider.id } }, 'now');
    const live = el('button', { attrs: { type: 'button' }, on: { click: () => this.live() } }, 'Now');
    const out = el('button', { attrs: { type: 'button' }, on: { click: () => this.zoom(0) } }, 'Show all');
    const slider = el('span', { class: 'row' }, el('label', { attrs: { for: this.slider.id } }, 'Moment'), this.slider, this.when, live);
    const legend = el('ul', { class: 'legend row' }, ...STATES.map((state) => el('li', { class: `state ${state}` }, WORDS[state])), el('li', { class: 'state evicted' }, 'evicted just now'));
    const chart = el('div', { class: 'chart' }, this.canvas);
    root.append(
      el('h2', {}, 'The radix tree'),
      el('div', { class: 'row tools' }, this.replicaRow, search, this.found, slider, out),
      legend,
      el('div', { class: 'panel' }, this.sum, chart, this.detail),
      el('div', { class: 'halves' }, this.requests.root, el('div', { class: 'panel' }, el('h3', {}, 'Evictions'), this.log)),
      this.list.root,
    );
    this.root = root;
  }

  connect() {
    const { feed, canvas } = this;
    feed.addEventListener('hello', () => this.started());
    feed.addEventListener('tree', (event) => this.changed(/** @type {CustomEvent} */ (event).detail));
    for (const name of ['queue', 'pulse']) feed.addEventListener(name, () => this.due());
    canvas.addEventListener('pointermove', (event) => this.point(event));
    canvas.addEventListener('pointerleave', () => {
      this.scene.under = 0;
      this.due();
    });
    canvas.addEventListener('click', () => {
      if (this.scene.under > 0) this.zoom(this.scene.under === this.focus ? (pathTo(this.nodes(), this.focus)[1]?.[UID] ?? 0) : this.scene.under);
    });
    this.root?.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') this.zoom(pathTo(this.nodes(), this.focus)[1]?.[UID] ?? 0);
    });
    new ResizeObserver(() => this.resize()).observe(this.canvas.parentElement ?? this.canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.resize());
  }

  tree() {
    return this.feed.treeOf(this.replica);
  }

  nodes() {
    return this.moment ? this.moment.nodes : this.tree().nodes;
  }

  queue() {
    return this.moment ? this.moment.queue : this.feed.queues.get(this.replica);
  }

  started() {
    if (this.feed.trees.size) return; // the same schedulers as before
    const count = this.feed.hello?.replicas ?? 1;
    this.replicas?.replaceChildren(...Array.from({ length: count }, (_, i) => el('option', { attrs: { value: i } }, String(i))));
    if (this.replicaRow) this.replicaRow.hidden = count < 2;
    this.replica = Math.min(this.replica, count - 1);
    this.texts.known.clear();
    this.live();
  }

  choose() {
    this.replica = Number(this.replicas?.value ?? 0);
    this.focus = 0;
    this.live();
  }

  /** @param {any} event */
  changed(event) {
    if (event.replica !== this.replica) return;
    if (!this.moment && !event.full) this.fade(event.removed);
    const tree = this.tree();
    if (this.slider) {
      this.slider.max = String(Math.max(1, tree.moments.length - 1));
      this.slider.disabled = tree.moments.length < 2;
      if (!this.moment) this.slider.value = this.slider.max;
    }
    this.due();
  }

  /** What has gone stays for a moment, in the colour of evictions. @param {number[]} uids */
  fade(uids) {
    const { boxes } = this.scene;
    const gone = new Set(uids);
    const now = performance.now();
    for (let i = 0; i < boxes.count; i += 1) {
      const node = boxes.node[i];
      if (!node || !gone.has(node[UID])) continue;
      this.scene.ghosts.push({ x: boxes.x[i], width: boxes.width[i], row: boxes.row[i], at: now });
    }
    const evicted = this.tree().evictedTokens;
    if (evicted > (this.evicted ?? evicted)) {
      const line = el('li', {}, `${new Date(this.tree().t * 1000).toLocaleTimeString()}: ${evicted - (this.evicted ?? 0)} tokens evicted`);
      this.log.prepend(line);
      while (this.log.childElementCount > 20) this.log.lastElementChild?.remove();
    }
    this.evicted = evicted;
  }

  slide() {
    const { moments } = this.tree();
    const at = Number(this.slider?.value);
    this.moment = at >= moments.length - 1 ? null : moments[at];
    if (this.when) this.when.textContent = this.moment ? new Date(this.moment.t * 1000).toLocaleTimeString() : 'now';
    this.due();
  }

  live() {
    this.moment = null;
    if (this.slider) this.slider.value = this.slider.max;
    if (this.when) this.when.textContent = 'now';
    this.evicted = this.tree().evictedTokens || undefined;
    this.due();
  }

  /** @param {number} uid */
  zoom(uid) {
    this.focus = uid;
    this.listedAt = 0;
    this.due();
  }

  /** @param {Set<number>} uids */
  mark(uids) {
    this.scene.marked = uids;
    this.due();
  }

  /** @param {PointerEvent} event */
  point(event) {
    const place = this.canvas.getBoundingClientRect();
    const at = this.scene.boxes.at(event.clientX - place.left, Math.floor((event.clientY - place.top) / ROW));
    const node = at < 0 ? null : this.scene.boxes.node[at];
    const uid = node ? node[UID] : 0;
    if (uid === this.scene.under) return;
    this.scene.under = uid;
    if (uid > 0) this.look(uid);
    else if (uid < 0 && node) this.detail.textContent = `${node[TOKENS]} tokens from ${node[START]}: ${WORDS.computing} (${this.queue()?.running[-1 - uid]?.rid ?? ''})`;
    else if (at >= 0) this.detail.textContent = `${this.scene.boxes.more[at]} nodes that are too thin to draw`;
    this.due();
  }

  /** Show what is known of a node, and its text when it comes. @param {number} uid */
  async look(uid) {
    const node = this.nodes().get(uid);
    if (!node) return;
    this.isLooking = uid;
    const state = stateOf(node, this.scene.since);
    const facts = `Node ${uid}: ${node[TOKENS]} tokens from ${node[START]}, ${node[BELOW]} with what is below; matched ${node[MATCHED]} times; ${WORDS[state]}${node[LOCKS] ? ` (${node[LOCKS]})` : ''}.`;
    this.detail.textContent = facts;
    const text = await this.texts.get(this.replica, node);
    if (this.isLooking === uid) this.detail.textContent = `${facts}\n${text ? visible(text) : '(its text is gone)'}`;
  }

  /** @param {Event} event */
  async find(event) {
    event.preventDefault();
    const words = this.search?.value.trim().toLowerCase() ?? '';
    if (!words || !this.found) return this.mark(new Set());
    const nodes = this.nodes();
    const largest = [...nodes.values()].sort((a, b) => b[BELOW] - a[BELOW]).slice(0, SEARCHED);
    await this.texts.getAll(this.replica, largest);
    const uids = this.texts.having(this.replica, words);
    for (const uid of uids) if (!nodes.has(uid)) uids.delete(uid);
    if (/^\d+$/.test(words) && nodes.has(Number(words))) uids.add(Number(words));
    this.found.textContent = `${uids.size} nodes, of the ${largest.length} largest`;
    this.mark(uids);
  }

  resize() {
    const width = Math.floor(this.canvas.parentElement?.clientWidth ?? 0);
    if (!width) return;
    this.scene.palette = paletteOf(this.root ?? document.body);
    this.scene.width = width;
    this.due();
  }

  due() {
    if (this.isDue || !this.isShown || !this.scene.width || document.visibilityState !== 'visible') return;
    this.isDue = true;
    requestAnimationFrame((now) => this.frame(now));
  }

  /** @param {number} now */
  frame(now) {
    this.isDue = false;
    const { scene } = this;
    const nodes = this.nodes();
    if (this.focus && !nodes.has(this.focus)) this.focus = 0;
    const total = Math.min(this.feed.hello?.pool_tokens ?? 0, this.moment ? 0 : this.tree().cachedTokens);
    layout(withGrowing(nodes, this.queue()?.running ?? []), this.focus, scene.width, total, scene.boxes);
    scene.since = this.matchesBefore();
    scene.replica = String(this.replica);
    this.fit(Math.max(LEAST_ROWS, scene.boxes.rows) * ROW);
    if (draw(this.ctx, scene, now) && !matchMedia('(prefers-reduced-motion: reduce)').matches) this.due();
    else if (scene.ghosts.length) setTimeout(() => this.due(), 300);
    if (now - this.listedAt > LIST_MS) this.write(now, nodes);
    else if (!this.timer) this.timer = setTimeout(() => ((this.timer = 0), this.due()), LIST_MS);
  }

  /** The number of the last match that is some seconds old. */
  matchesBefore() {
    const tree = this.tree();
    const t = this.moment ? this.moment.t : (this.feed.pulses.at(-1)?.t ?? tree.t);
    for (let i = tree.moments.length - 1; i >= 0; i -= 1) if (tree.moments[i].t <= t - HIT_S) return tree.moments[i].matches;
    return tree.moments[0]?.matches ?? 0;
  }

  /** @param {number} height */
  fit(height) {
    const { canvas, scene } = this;
    const ratio = devicePixelRatio || 1;
    if (canvas.width === Math.floor(scene.width * ratio) && scene.height === height) return;
    scene.height = height;
    canvas.width = Math.floor(scene.width * ratio);
    canvas.height = Math.floor(height * ratio);
    canvas.style.width = `${scene.width}px`;
    canvas.style.height = `${height}px`;
    this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  /** @param {number} now @param {Map<number, Node>} nodes */
  write(now, nodes) {
    this.listedAt = now;
    const { scene } = this;
    const tree = this.tree();
    const pool = this.feed.hello?.pool_tokens ?? 0;
    const whole = tree.isWhole ? '' : ', the largest of more';
    this.sum.textContent = `${nodes.size} nodes${whole} · ${short(tree.cachedTokens)} of ${short(pool)} tokens of the pool in the tree · ${short(tree.evictedTokens)} evicted since the start`;
    this.canvas.setAttribute('aria-label', `The tree: ${nodes.size} nodes with ${tree.cachedTokens} tokens. The list below has the same.`);
    this.requests.show(this.queue(), nodes);
    this.list.show(nodes, this.focus, scene.since, scene.replica, this.texts.known);
    if (!this.moment) this.label();
  }

  /** Ask for the texts of the widest boxes, and of those in the list. */
  label() {
    const { boxes } = this.scene;
    /** @type {[number, Node][]} */
    const wide = [];
    for (let i = 0; i < boxes.count; i += 1) {
      const node = boxes.node[i];
      if (node && node[UID] > 0 && boxes.width[i] > 90) wide.push([boxes.width[i], node]);
    }
    wide.sort((a, b) => b[0] - a[0]);
    const nodes = [...wide.slice(0, LABELS).map(([, node]) => node), ...this.list.shown];
    this.texts.getAll(this.replica, nodes).then((isNew) => {
      if (!isNew) return;
      this.listedAt = 0;
      this.due();
    });
  }
}
