/** Figures of the last minutes. */

import { el, short, tableHead } from '../dom.js';
import uPlot from '../vendor/uPlot.esm.js';
import { ratesOf } from './rates.js';

/** @typedef {[string, string, string, string]} Line  name, title, colour, dash */
/** @type {{title: string, unit: string, lines: Line[]}[]} */
const CHARTS = [
  { title: 'Throughput', unit: 'tokens/s', lines: [['generated', 'generated', 'accent', ''], ['computed', 'prompts, computed', 'warn', 'long'], ['cached', 'prompts, from the cache', 'good', 'short']] },
  { title: 'Hit rate', unit: '% of prompt tokens', lines: [['hit', 'from the cache', 'good', '']] },
  { title: 'Time to first token', unit: 'ms, of streams in the last minute', lines: [['ttft50', 'p50', 'accent', ''], ['ttft99', 'p99', 'bad', 'long']] },
  { title: 'Between tokens', unit: 'ms, of streams in the last minute', lines: [['itl50', 'p50', 'accent', ''], ['itl99', 'p99', 'bad', 'long']] },
  { title: 'Requests', unit: 'at work', lines: [['running', 'running', 'accent', ''], ['waiting', 'waiting', 'warn', 'long']] },
  { title: 'KV pool', unit: 'tokens', lines: [['used', 'held by requests', 'accent', ''], ['kept', 'in the tree', 'good', 'long'], ['free', 'free', 'muted', 'short']] },
  { title: 'Exposed scheduling', unit: '% of busy time', lines: [['exposed', 'between forward passes', 'bad', '']] },
  { title: 'Not sampled one by one', unit: 'tokens/s', lines: [['jumped', 'jumped', 'jumped', ''], ['guessed', 'guessed', 'muted', 'short'], ['accepted', 'guessed, and right', 'guessed', 'long']] },
  { title: 'Steps by kind', unit: 'steps/s', lines: [['decode_steps', 'decode', 'accent', ''], ['verify_steps', 'verify guesses', 'guessed', 'long'], ['prefill_steps', 'prefill', 'warn', 'short'], ['mixed_steps', 'mixed', 'bad', 'long']] },
];
const DASHES = { '': [], long: [8, 4], short: [3, 3] };

/** @param {HTMLElement} root @param {import('../types.js').Context} context @returns {import('../types.js').View} */
export function mountPulse(root, context) {
  const view = new PulseView(root, context);
  return { shown: () => view.show(true), hidden: () => view.show(false) };
}

class PulseView {
  /** @param {HTMLElement} root @param {import('../types.js').Context} context */
  constructor(root, context) {
    this.root = root;
    this.feed = context.feed;
    this.isShown = false;
    /** @type {{plot: any, holder: HTMLElement, values: HTMLElement, lines: Line[]}[]} */
    this.charts = [];
    this.body = el('tbody');
    const head = tableHead('Part', 'State', '#CPU, cores', '#Memory, MiB', '#Lost');
    const table = el('table', {}, el('caption', { class: 'unseen' }, 'Processes of the server'), head, this.body);
    this.grid = el('div', { class: 'grid' });
    root.append(el('h2', {}, 'Pulse'), this.grid, el('div', { class: 'panel scroll', attrs: { tabindex: 0, role: 'region', 'aria-label': 'Processes' } }, el('h3', {}, 'Processes'), table));
    this.feed.addEventListener('pulse', () => this.draw());
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.rebuild());
    new ResizeObserver(() => this.resize()).observe(root);
  }

  /** @param {boolean} isShown */
  show(isShown) {
    this.isShown = isShown;
    if (isShown && !this.charts.length) this.rebuild();
    this.draw();
  }

  rebuild() {
    for (const { plot } of this.charts) plot.destroy();
    this.grid.replaceChildren();
    this.charts = CHARTS.map(({ title, unit, lines }) => this.chart(title, unit, lines));
    this.draw();
  }

  /** @param {string} title @param {string} unit @param {Line[]} lines */
  chart(title, unit, lines) {
    const values = el('p', { class: 'values' });
    const holder = el('div', { attrs: { 'aria-hidden': 'true' } });
    const figure = el('figure', { class: 'panel' }, el('figcaption', {}, el('h3', {}, title), el('span', { class: 'muted' }, unit), values), holder);
    this.grid.append(figure);
    const colour = (/** @type {string} */ name) => resolved(this.root, name);
    const axis = { stroke: colour('muted'), grid: { stroke: colour('line'), width: 1 }, ticks: { show: false } };
    /** @type {uPlot.Options} */
    const options = {
      width: Math.max(240, holder.clientWidth),
      height: 150,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high ?? 1) * 1.08] } },
      axes: [{ ...axis, size: 28, space: 90, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => short(tick, tick < 10 && tick % 1 ? 1 : 0)) }],
      series: [{}, ...lines.map(([, name, hue, dash]) => ({ label: name, stroke: colour(hue), width: 2, dash: DASHES[/** @type {keyof typeof DASHES} */ (dash)], points: { show: false } }))],
    };
    return { plot: new uPlot(options, [[], ...lines.map(() => [])], holder), holder, values, lines };
  }

  resize() {
    for (const { plot, holder } of this.charts) if (holder.clientWidth) plot.setSize({ width: holder.clientWidth, height: 150 });
  }

  draw() {
    const { pulses } = this.feed;
    if (!this.isShown || !this.charts.length) return;
    const rates = ratesOf(pulses);
    for (const { plot, values, lines } of this.charts) {
      plot.setData([rates.t, ...lines.map(([name]) => rates[name] ?? [])]);
      values.replaceChildren(...lines.map(([name, title, hue, dash]) => value(title, hue, dash, rates[name]?.at(-1) ?? null)));
    }
    const parts = pulses.at(-1)?.parts ?? [];
    this.body.replaceChildren(...parts.map(partRow));
  }
}

/** The time of day as it is written where the browser is. @param {number} seconds  Unix time */
function clock(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString();
}

/** @param {string} title @param {string} hue @param {string} dash @param {number | null} now */
function value(title, hue, dash, now) {
  const key = el('span', { class: `key ${dash}` });
  key.style.borderTopColor = `var(--${hue})`;
  return el('span', { class: 'value' }, key, `${title} `, el('b', {}, now === null ? '–' : short(now, now < 10 && now % 1 ? 1 : 0)));
}

/** @param {import('../types.js').Part} part */
function partRow(part) {
  return el(
    'tr',
    {},
    el('td', {}, part.name),
    el('td', {}, part.state),
    el('td', { class: 'number' }, part.cpu === null ? '–' : part.cpu.toFixed(2)),
    el('td', { class: 'number' }, part.rss === null ? '–' : Math.round(part.rss / 2 ** 20)),
    el('td', { class: 'number' }, part.losses),
  );
}

/** A colour of the style sheet as it is now. @param {HTMLElement} root @param {string} name */
function resolved(root, name) {
  const probe = el('span');
  root.append(probe);
  probe.style.color = `var(--${name})`;
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
