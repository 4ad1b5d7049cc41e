/** Runs of programs: lanes over time. */

import { el, short, visible } from '../dom.js';
import { criticalPath, laneTitle, lanesOf } from './lanes.js';

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
    this.hint = el('p', { class: 'muted text' });
    this.list = el('ul', { class: 'runs', attrs: { 'aria-label': 'Runs, the latest first' } });
    this.title = el('h3');
    this.sum = el('p', { class: 'muted' });
    this.lanes = el('div', { class: 'lanes', attrs: { role: 'group', 'aria-label': 'Calls over time, a lane for each fork' } });
    this.detail = el('div', { class: 'detail text', attrs: { 'aria-live': 'polite' } });
    const legend = el('p', { class: 'legend row' }, el('span', { class: 'key cached' }, 'from the cache'), el('span', { class: 'key computed' }, 'computed'), el('span', { class: 'key critical' }, 'critical path'), el('span', { class: 'key effect' }, 'tools and effects'));
    this.one = el('div', { class: 'panel' }, this.title, this.sum, legend, this.lanes, this.detail);
    root.append(el('h2', {}, 'Programs'), this.hint, el('div', { class: 'split' }, el('div', { class: 'panel' }, el('h3', {}, 'Runs'), this.list), this.one));
    for (const name of ['run', 'hello']) this.feed.addEventListener(name, () => this.due());
    this.due();
  }

  /** @param {boolean} isShown */
  show(isShown) {
    this.isShown = isShown;
    this.draw();
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
    const runs = [...this.feed.runs.values()].reverse();
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
      this.detail.replaceChildren();
      this.draw();
    };
    const attrs = { type: 'button', 'data-run': run.run, 'aria-pressed': String(run.run === this.chosen) };
    const state = run.ended === null ? 'running' : `${(run.ended - run.started).toFixed(2)} s`;
    const time = new Date(run.started * 1000).toLocaleTimeString();
    return el('li', {}, el('button', { attrs, on: { click: choose } }, el('b', {}, visible(run.name)), ` ${time} · ${state} · ${run.steps.size} calls`));
  }

  /** @param {Run} run */
  drawRun(run) {
    const steps = [...run.steps.values()];
    const path = new Set(criticalPath(steps).map((step) => step.id));
    const end = Math.max(0.001, ...steps.map((step) => step.t1 ?? step.t0), run.ended === null ? 0 : run.ended - run.started);
    const sum = (/** @type {'prompt_tokens' | 'cached_tokens' | 'completion_tokens'} */ name) => steps.reduce((total, step) => total + step[name], 0);
    const prompt = sum('prompt_tokens');
    const waited = [...steps].filter((step) => path.has(step.id)).reduce((total, step) => total + (step.t1 ?? step.t0) - step.t0, 0);
    this.title.textContent = visible(run.name);
    const cut = run.cut ? ` · ${run.cut} more calls are not kept` : '';
    this.sum.textContent = `${end.toFixed(2)} s · ${steps.length} calls · ${short(prompt)} prompt tokens, ${prompt ? Math.round((100 * sum('cached_tokens')) / prompt) : 0} % from the cache · ${short(sum('completion_tokens'))} new · critical path: ${path.size} calls, ${waited.toFixed(2)} s${cut}`;
    const focused = document.activeElement?.getAttribute('data-step');
    this.lanes.replaceChildren(...lanesOf(steps).map(([lane, found]) => this.lane(lane, found, end, path)));
    if (focused) /** @type {HTMLElement | null} */ (this.lanes.querySelector(`[data-step="${CSS.escape(focused)}"]`))?.focus();
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
    const words = `${step.kind} ${step.name}, ${step.t1 === null ? 'running' : `${(1000 * took).toFixed(0)} ms`}${isCritical ? ', on the critical path' : ''}`;
    const cached = el('span', { class: 'share' });
    cached.style.width = `${100 * share}%`;
    const kind = ['gen', 'select', 'score'].includes(step.kind) ? step.kind : 'effect';
    const look = () => this.look(step);
    const attrs = { type: 'button', 'data-step': step.id, 'aria-label': visible(words) };
    const bar = el('button', { class: `bar ${kind}${isCritical ? ' critical' : ''}${step.error ? ' failed' : ''}`, attrs, on: { focus: look, pointerenter: look, click: look } }, cached, el('span', { class: 'label' }, visible(step.name)));
    bar.style.left = `${(100 * step.t0) / end}%`;
    bar.style.width = `${Math.max(0.3, (100 * took) / end)}%`;
    return bar;
  }

  /** @param {Step} step */
  look(step) {
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
