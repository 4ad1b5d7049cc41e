/** The bodies of requests, for the server and for people who copy them. */

/** @typedef {import('./settings.js').Settings} Settings */
/**
 * @typedef {object} Message
 * @property {string} role
 * @property {string} content
 * @property {string} [reasoning]  of an answer, for the page alone
 * @property {boolean} [isPlain]  for the page alone: shown as it was written
 */

/** The settings that have one name everywhere. @param {Settings} settings @returns {Record<string, any>} */
export function sampling(settings) {
  /** @type {Record<string, any>} */
  const fields = {};
  if (settings.temperature !== null) fields.temperature = settings.temperature;
  if (settings.topP !== null) fields.top_p = settings.topP;
  if (settings.topK !== null) fields.top_k = settings.topK || -1;
  if (settings.minP !== null) fields.min_p = settings.minP;
  if (settings.seed !== null) fields.seed = settings.seed;
  if (settings.samples > 1) fields.n = settings.samples;
  if (settings.stop.length) fields.stop = settings.stop;
  return fields;
}

/** What the settings mean in a body of either route. @param {Settings} settings */
function fieldsOf(settings) {
  /** @type {Record<string, any>} */
  const body = { max_tokens: settings.maxTokens, ...sampling(settings) };
  if (settings.kind === 'regex') body.regex = settings.constraint;
  if (settings.kind === 'ebnf') body.ebnf = settings.constraint;
  if (settings.kind === 'json_schema') {
    body.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema: JSON.parse(settings.constraint) } };
  }
  return body;
}

/** Throws SyntaxError for a JSON Schema that is no JSON. @param {Settings} settings @param {Message[]} messages */
export function chatBody(settings, messages) {
  return { messages: withSystem(settings, messages), ...fieldsOf(settings) };
}

/** @param {Settings} settings @param {string} prompt */
export function completionBody(settings, prompt) {
  return { prompt, ...fieldsOf(settings) };
}

/** The same as a stream, with what the page shows of tokens. @param {any} body @param {Settings} settings */
export function streaming(body, settings) {
  const stream = { ...body, stream: true, stream_options: { include_usage: true } };
  if (!settings.tokens) return stream;
  const logprobs = settings.mode === 'chat' ? { logprobs: true, top_logprobs: 5 } : { logprobs: 5 };
  return { ...stream, ...logprobs, token_origins: true };
}

/** The messages as requests have them. @param {Settings} settings @param {Message[]} messages */
export function withSystem(settings, messages) {
  const sent = messages.map(({ role, content }) => ({ role, content }));
  return settings.system ? [{ role: 'system', content: settings.system }, ...sent] : sent;
}
