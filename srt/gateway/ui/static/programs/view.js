/** Runs of programs: lanes over time. */

import { el, short, visible } from '../dom.js';
import { criticalPath, laneTitle, lanesOf, neighbour } from './lanes.js';
import { newestFirst, progress, sums } from './runs.js';
import { tableOf } from './table.js';
import { drawWires } from './wires.js';

/** @typedef {import('../types.js').Step} Step */
/** @typedef {import('../types.js').Run} Run */

const DRAW_MS = 300;

/** @param {HTMLElement} root @param {import('../types.js').Context} context @returns {import('../types.js').View} */
export function mountPrograms(root, context) {
  const view = new ProgramsView(root, context);
  return { shown: () => view.show(true), hidden: () => view.show(false) };
}

class ProgramsView {
  /** @param {HTMLElement} root @param {import('../types.js').Context} context */
  constructor(root, context) {
    this.feed = context.feed;
    this.keys = context.keys;
    this.isShown = false;
    this.chosen = '';
    /** @type {[string, Step[]][] | undefined} */
    this.laneList = undefined;
    this.looked = ''; // the call that is shown in detail
    /** @type {Step | undefined} */
    this.shownStep = undefined;
    /** @type {() => void} */
    this.drawLines = () => {};
    this.hint = el('p', { class: 'muted text' });
    this.list = el('ul', { class: 'runs', attrs: { 'aria-label': 'Runs, the latest first' } });
    this.title = el('h3');
    this.sum = el('p', { class: 'muted' });
    this.lanes = el('div', { class: 'lanes', attrs: { role: 'group', 'aria-label': 'Calls over time, a lane for each fork; arrow keys go from call to call' }, on: { keydown: (event) => this.walk(event) } });
    this.detail = el('div', { class: 'detail text', attrs: { 'aria-live': 'polite', tabindex: 0, role: 'region', 'aria-label': 'The call' } });
    const legend = el('p', { class: 'legend row' }, el('span', { class: 'key cached' }, 'from the cache'), el('span', { class: 'key computed' }, 'computed'), el('span', { class: 'key critical' }, 'critical path'), el('span', { class: 'key effect' }, 'tools and effects'), el('span', { class: 'key failed' }, 'failed'), el('span', { class: 'key wire' }, 'waited for'));
    this.table = el('div', { class: 'scroll', attrs: { tabindex: 0, role: 'region', 'aria-label': 'Table of calls' } });
    this.details = el('details', { on: { toggle: () => this.draw() } }, el('summary', {}, 'As a table'), this.table);
    this.one = el('div', { class: 'panel' }, this.title, this.sum, legend, this.lanes, this.detail, this.details);
    root.append(el('h2', {}, 'Programs'), this.hint, el('div', { class: 'split' }, el('div', { class: 'panel' }, el('h3', {}, 'Runs'), this.list), this.one));
    for (const name of ['run', 'hello']) this.feed.addEventListener(name, () => this.due());
    this.feed.addEventListener('pulse', () => this.goOn());
    new ResizeObserver(() => this.drawLines()).observe(this.lanes);
    this.due();
  }

  /** @param {boolean} isShown */
  show(isShown) {
    this.isShown = isShown;
    this.draw();
  }

  /** The server's time. */
  now() {
    return this.feed.pulses[this.feed.pulses.length - 1]?.t ?? 0;
  }

  /** A run that goes on gets wider. */
  goOn() {
    if ([...this.feed.runs.values()].some((run) => run.ended === null && this.now() - run.heard < 120)) this.due();
  }

  due() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.draw();
    }, DRAW_MS);
  }

  draw() {
    if (!this.isShown) return;
    const runs = newestFirst(this.feed.runs.values());
    this.hint.hidden = runs.length > 0;
    this.hint.textContent = `No program reports here yet. Run one with SGL_TRACE set to this page's address, as the server has written it: ${location.origin}/#key=…`;
    if (!this.feed.runs.has(this.chosen)) this.chosen = runs[0]?.run ?? '';
    const focused = this.list.contains(document.activeElement) ? document.activeElement?.getAttribute('data-run') : null;
    this.list.replaceChildren(...runs.map((run) => this.row(run)));
    if (focused) /** @type {HTMLElement | null} */ (this.list.querySelector(`[data-run="${focused}"]`))?.focus();
    const run = this.feed.runs.get(this.chosen);
    this.one.hidden = !run;
    if (run) this.drawRun(run);
  }

  /** @param {Run} run */
  row(run) {
    const choose = () => {
      this.chosen = run.run;
      this.looked = '';
      this.draw();
    };
    const attrs = { type: 'button', 'data-run': run.run, 'aria-pressed': String(run.run === this.chosen) };
    const { state, took } = progress(run, this.now());
    const time = new Date(run.started * 1000).toLocaleTimeString();
    const { prompt, made, failed, share } = sums(run);
    const states = { ended: '', running: 'running, ', silent: 'no news, ' };
    const about = [`${time} · ${states[state]}${took.toFixed(2)} s · ${run.steps.size} calls${failed ? `, ${failed} failed` : ''}`, `${short(prompt)} + ${short(made)} tokens · ${share} % cached`];
    return el('li', {}, el('button', { attrs, on: { click: choose } }, el('b', {}, visible(run.name)), ...about.map((text) => el('span', { class: 'about' }, text))));
  }

  /** @param {Run} run */
  drawRun(run) {
    const steps = [...run.steps.values()];
    const path = new Set(criticalPath(steps).map((step) => step.id));
    const { took } = progress(run, this.now());
    const end = Math.max(0.001, took);
    const { prompt, made, share } = sums(run);
    const waited = steps.filter((step) => path.has(step.id)).reduce((total, step) => total + (step.t1 ?? step.t0) - step.t0, 0);
    this.title.textContent = visible(run.name);
    const cut = run.cut ? ` · ${run.cut} more calls are not kept` : '';
    this.sum.textContent = `${end.toFixed(2)} s · ${steps.length} calls · ${short(prompt)} prompt tokens, ${share} % from the cache · ${short(made)} new · critical path: ${path.size} calls, ${waited.toFixed(2)} s${cut}`;
    const focused = this.lanes.contains(document.activeElement) ? document.activeElement?.getAttribute('data-step') : null;
    this.laneList = lanesOf(steps);
    this.lanes.replaceChildren(...this.laneList.map(([lane, found]) => this.lane(lane, found, end, path)));
    this.enter(focused || this.looked);
    if (focused) this.barOf(focused)?.focus();
    this.drawLines = () => drawWires(this.lanes, steps, end, path);
    this.drawLines();
    this.table.replaceChildren(...(this.details.open ? [tableOf(steps, path)] : []));
    this.look(run.steps.get(this.looked));
  }

  /** @param {string} id @returns {HTMLElement | null} */
  barOf(id) {
    return this.lanes.querySelector(`[data-step="${CSS.escape(id)}"]`);
  }

  /** The tab key comes to this bar, or else to the first. @param {string} id */
  enter(id) {
    this.lanes.querySelector('[tabindex="0"]')?.setAttribute('tabindex', '-1');
    (this.barOf(id) ?? this.lanes.querySelector('.bar'))?.setAttribute('tabindex', '0');
  }

  /** @param {KeyboardEvent} event */
  walk(event) {
    const id = /** @type {HTMLElement} */ (event.target).getAttribute('data-step');
    const next = id && this.laneList ? neighbour(this.laneList, id, event.key) : undefined;
    if (!next) return;
    event.preventDefault();
    this.barOf(next.id)?.focus();
  }

  /** @param {string} lane @param {Step[]} steps @param {number} end @param {Set<string>} path */
  lane(lane, steps, end, path) {
    const track = el('div', { class: 'track' });
    for (const step of steps) track.append(this.bar(step, end, path.has(step.id)));
    return el('div', { class: 'lane', attrs: { 'data-lane': lane } }, el('span', { class: 'name' }, laneTitle(lane)), track);
  }

  /** @param {Step} step @param {number} end @param {boolean} isCritical */
  bar(step, end, isCritical) {
    const took = (step.t1 ?? end) - step.t0;
    const share = step.prompt_tokens ? step.cached_tokens / step.prompt_tokens : 0;
    const words = `${step.kind} ${step.name}, ${step.t1 === null ? 'running' : `${(1000 * took).toFixed(0)} ms`}${isCritical ? ', on the critical path' : ''}${step.error === null ? '' : ', failed'}`;
    const cached = el('span', { class: 'share' });
    cached.style.width = `${100 * share}%`;
    const kind = ['gen', 'select', 'score'].includes(step.kind) ? step.kind : 'effect';
    const look = () => {
      this.looked = step.id;
      this.look(step);
      this.enter(step.id);
    };
    const attrs = { type: 'button', tabindex: -1, 'data-step': step.id, 'aria-label': visible(words) };
    const bar = el('button', { class: `bar ${kind}${isCritical ? ' critical' : ''}${step.error ? ' failed' : ''}`, attrs, on: { focus: look, pointerenter: look, click: look } }, cached, el('span', { class: 'label' }, visible(step.name)));
    bar.style.left = `${(100 * step.t0) / end}%`;
    bar.style.width = `${Math.max(0.3, (100 * took) / end)}%`;
    return bar;
  }

  /** @param {Step | undefined} step */
  look(step) {
    if (step === this.shownStep) return;
    this.shownStep = step;
    if (!step) {
      this.detail.replaceChildren();
      return;
    }
    const from = step.from_log ? ' · answered by the log' : step.is_shared ? ' · shared with an equal call' : '';
    const tokens = `${step.prompt_tokens} prompt tokens, ${step.cached_tokens} from the cache, ${step.completion_tokens} new`;
    const times = `${step.t0.toFixed(3)} s to ${step.t1 === null ? 'now' : `${step.t1.toFixed(3)} s`}`;
    this.detail.replaceChildren(
      el('p', {}, el('b', {}, visible(`${step.kind} ${step.name}`)), ` · ${times} · ${tokens}${from}`),
      el('p', { class: 'muted' }, visible(step.prompt ? `… ${step.prompt}` : '')),
      el('p', {}, visible(step.text)),
    );
    if (step.error) this.detail.append(el('p', { class: 'error' }, visible(step.error)));
  }
}
