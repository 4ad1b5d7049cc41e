/** What stands in place of the messages while there are none. */

import { el } from '../dom.js';
import { CONSTRAINTS } from './settings.js';

/** @typedef {import('./settings.js').Settings} Settings */

/** @type {{title: string, message: string, settings: Partial<Settings>}[]} */
const EXAMPLES = [
  { title: 'A question', message: 'What is the capital of France?', settings: { temperature: 0 } },
  { title: 'An answer that fits a JSON Schema', message: 'Name a film and the year in which it came out.', settings: { temperature: 0, kind: 'json_schema', constraint: CONSTRAINTS.json_schema } },
  { title: 'Each token with its probability', message: 'Is the sky blue? Say why.', settings: { temperature: 0, kind: 'regex', constraint: CONSTRAINTS.regex, tokens: true } },
  { title: 'Four samples of one prompt', message: 'Write the first sentence of a story about a lighthouse.', settings: { samples: 4, temperature: 1 } },
];

/** @param {(message: string, settings: Partial<Settings>) => void} choose  somebody wants this example */
export function welcome(choose) {
  const buttons = EXAMPLES.map(({ title, message, settings }) =>
    el('button', { attrs: { type: 'button' }, on: { click: () => choose(message, settings) } }, el('b', {}, title), el('span', { class: 'muted' }, message)),
  );
  return el(
    'div',
    { class: 'welcome' },
    el('p', {}, `This server runs a language model: clients of OpenAI’s HTTP API reach it at ${location.origin}/v1, programs in lang at ${location.origin}. What prompts have in common it computes once: Tree shows what it keeps, Pulse how fast it is, and Programs the calls of each program. Write a message below, or try an example:`),
    el('div', { class: 'examples' }, ...buttons),
  );
}
