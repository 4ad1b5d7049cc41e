/** The calls of a run as a table, for who does not see the lanes or wants the numbers. */

import { el, tableHead, visible } from '../dom.js';
import { laneOf, laneTitle } from './lanes.js';

/** @typedef {import('../types.js').Step} Step */

const HEADS = ['#Start', '#Took', 'Lane', 'Call', '#Prompt', '#Cached', '#New', 'Waited for', 'Notes'];

/**
 * @param {Step[]} steps
 * @param {Set<string>} path  the ids on the critical path
 * @returns {HTMLElement}
 */
export function tableOf(steps, path) {
  const names = new Map(steps.map((step) => [step.id, step.name || step.kind]));
  const rows = [...steps].sort((a, b) => a.t0 - b.t0).map((step) => row(step, names, path.has(step.id)));
  return el('table', {}, el('caption', { class: 'unseen' }, 'Calls of the run, by their start'), tableHead(...HEADS), el('tbody', {}, ...rows));
}

/** @param {Step} step @param {Map<string, string>} names @param {boolean} isCritical */
function row(step, names, isCritical) {
  const number = (/** @type {string | number} */ value) => el('td', { class: 'number' }, value);
  const after = step.after.map((id) => visible(names.get(id) ?? id)).join(', ');
  const marks = [isCritical ? 'critical path' : '', step.error === null ? '' : 'failed', step.from_log ? 'from the log' : '', step.is_shared ? 'shared' : ''];
  return el('tr', {},
    number(`${step.t0.toFixed(3)} s`), number(step.t1 === null ? 'running' : `${(step.t1 - step.t0).toFixed(3)} s`),
    el('td', {}, laneTitle(laneOf(step))), el('td', {}, visible(`${step.kind} ${step.name}`)),
    number(step.prompt_tokens), number(step.cached_tokens), number(step.completion_tokens),
    el('td', {}, after), el('td', {}, marks.filter(Boolean).join(', ')));
}
