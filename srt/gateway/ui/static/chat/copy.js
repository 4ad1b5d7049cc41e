/** A request as text that does the same: a curl command, Python, and `lang`. */

import { chatBody, completionBody, sampling, withSystem } from './requests.js';

/** @typedef {import('./settings.js').Settings} Settings */
/** @typedef {import('./requests.js').Message} Message */

/**
 * @typedef {object} Asked
 * @property {Settings} settings
 * @property {Message[]} messages  of a chat
 * @property {string} prompt  of a completion
 * @property {string} url  the server's address
 * @property {boolean} hasKey  the server wants an API key
 */

/** @param {Asked} asked */
export function asCurl({ settings, messages, prompt, url, hasKey }) {
  const isChat = settings.mode === 'chat';
  const body = isChat ? chatBody(settings, messages) : completionBody(settings, prompt);
  const path = isChat ? '/v1/chat/completions' : '/v1/completions';
  const key = hasKey ? ` \\\n  -H "Authorization: Bearer $SRT_API_KEY"` : '';
  const quoted = JSON.stringify(body, null, 1).replaceAll("'", "'\\''");
  return `curl -s ${url}${path}${key} \\\n  -H 'content-type: application/json' \\\n  -d '${quoted}'\n`;
}

/** @param {Asked} asked */
export function asPython({ settings, messages, prompt, url, hasKey }) {
  const what = settings.mode === 'chat' ? `messages=${literal(withSystem(settings, messages), 8)}` : `text=${literal(prompt)}`;
  const key = hasKey ? ', api_key=os.environ["SRT_API_KEY"]' : '';
  const many = settings.samples > 1;
  return [
    'import asyncio',
    ...(hasKey ? ['import os'] : []),
    '',
    'import srt',
    '',
    '',
    'async def main():',
    `    async with srt.AsyncClient(${literal(url)}${key}) as client:`,
    `        sampling = ${literal(ownSampling(settings), 8)}`,
    `        ${many ? 'answers' : 'answer'} = await client.generate(${what}, sampling=sampling)`,
    ...(many ? ['        for answer in answers:', '            print(answer.text)'] : ['        print(answer.text)']),
    '',
    '',
    'asyncio.run(main())',
    '',
  ].join('\n');
}

/** @param {Asked} asked */
export function asLang({ settings, messages, prompt, url, hasKey }) {
  const gen = `sgl.gen("answer", ${genArguments(settings)})`;
  const lines = [];
  if (settings.mode === 'chat') {
    const last = messages.length - 1;
    if (settings.system) lines.push(`s += sgl.system(${literal(settings.system)})`);
    messages.forEach(({ role, content }, index) => {
      lines.push(`s += sgl.${role}(${literal(content)})`);
      if (index === last && role === 'user') lines.push(`s += sgl.assistant(${gen})`);
    });
  } else {
    lines.push(`s += ${literal(prompt)}`, `s += ${gen}`);
  }
  const key = hasKey ? ', api_key=os.environ["SRT_API_KEY"]' : '';
  return [
    ...(hasKey ? ['import os', ''] : []),
    'import lang as sgl',
    '',
    `sgl.set_default_backend(sgl.RuntimeEndpoint(${literal(url)}${key}))`,
    '',
    '',
    '@sgl.function',
    'def program(s):',
    ...lines.map((line) => `    ${line}`),
    '',
    '',
    'print(program.run()["answer"])',
    '',
  ].join('\n');
}

/** The settings by the names of `srt.SamplingParams`. @param {Settings} settings */
function ownSampling(settings) {
  /** @type {Record<string, any>} */
  const params = { max_new_tokens: settings.maxTokens, ...sampling(settings) };
  if (settings.kind !== 'none') params[settings.kind] = settings.constraint;
  if (settings.kind === 'json_schema') params.close = true;
  return params;
}

/** @param {Settings} settings */
function genArguments(settings) {
  const { max_new_tokens: max_tokens, close, ...rest } = ownSampling(settings);
  return Object.entries({ max_tokens, ...rest })
    .map(([name, value]) => `${name}=${literal(value)}`)
    .join(', ');
}

/**
 * A value as Python writes it.
 * @param {any} value
 * @param {number} [indent]  of the line it stands in; lists of objects then take lines of their own
 * @returns {string}
 */
export function literal(value, indent) {
  if (value === null) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  // What JSON leaves as it is and Python would take for the end of a line, or could not be seen.
  if (typeof value === 'string') return JSON.stringify(value).replace(/[\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g, escape4);
  if (Array.isArray(value)) {
    const items = value.map((item) => literal(item));
    if (indent === undefined || items.length < 2) return `[${items.join(', ')}]`;
    const pad = ' '.repeat(indent + 4);
    return `[\n${items.map((item) => `${pad}${item},\n`).join('')}${' '.repeat(indent)}]`;
  }
  if (typeof value === 'object') return `{${Object.entries(value).map(([key, item]) => `${literal(key)}: ${literal(item)}`).join(', ')}}`;
  return String(value);
}

/** @param {string} char */
function escape4(char) {
  return `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`;
}
