/** Requests to the server that has served this page. */

export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status  0: the server was not reached
   * @param {string | null} param  the field that is wrong
   */
  constructor(message, status, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/**
 * @param {string} path
 * @param {RequestInit} init
 * @returns {Promise<Response>} an answer of status 2xx; ApiError otherwise
 */
async function request(path, init) {
  let response;
  try {
    response = await fetch(path, { ...init, cache: 'no-store', credentials: 'omit', redirect: 'error' });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError('the server cannot be reached', 0);
  }
  if (response.ok) return response;
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    throw new ApiError(error.message, response.status, error.param);
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw new ApiError(`status ${response.status}`, response.status);
  }
}

/**
 * @param {string} path
 * @param {Record<string, string>} headers
 * @returns {Promise<any>}
 */
export async function getJson(path, headers) {
  return (await request(path, { headers })).json();
}

/**
 * @param {string} path
 * @param {any} body
 * @param {Record<string, string>} headers
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function postJson(path, body, headers, signal) {
  return (await request(path, posting(body, headers, signal))).json();
}

/** @param {any} body @param {Record<string, string>} headers @param {AbortSignal} [signal] @returns {RequestInit} */
function posting(body, headers, signal) {
  return {
    method: 'POST',
    headers: { ...headers, 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal,
  };
}

/**
 * The payloads of server-sent events; `[DONE]` ends them. An error among them is thrown.
 * @param {string} path
 * @param {any} body  null: a GET
 * @param {Record<string, string>} headers
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<any, void, void>}
 */
export async function* events(path, body, headers, signal) {
  const response = await request(path, body === null ? { headers, signal } : posting(body, headers, signal));
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (!line.startsWith('data: ')) continue;
      if (line === 'data: [DONE]') return;
      const payload = JSON.parse(line.slice(6));
      if (payload.error) throw new ApiError(payload.error.message, 200, payload.error.param);
      yield payload;
    }
  }
}
