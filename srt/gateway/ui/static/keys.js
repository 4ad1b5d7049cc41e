/** The keys that the server wants. They live in this tab's session and go into headers, never into addresses. */

const ADMIN = 'srt-admin-key';
const API = 'srt-api-key';

export class Keys extends EventTarget {
  constructor() {
    super();
    this.takeFromAddress();
  }

  /** Takes the key out of the address that the server has written; whether it stood there. */
  takeFromAddress() {
    const given = keyOf(location.hash);
    if (!given) return false;
    sessionStorage.setItem(ADMIN, given);
    history.replaceState(null, '', location.pathname);
    this.dispatchEvent(new Event('changed'));
    return true;
  }

  get adminKey() {
    return sessionStorage.getItem(ADMIN) ?? '';
  }

  get apiKey() {
    return sessionStorage.getItem(API) ?? '';
  }

  /** @param {string} adminKey @param {string} apiKey */
  set(adminKey, apiKey) {
    sessionStorage.setItem(ADMIN, adminKey.trim());
    sessionStorage.setItem(API, apiKey.trim());
    this.dispatchEvent(new Event('changed'));
  }

  /** For what is watched. @returns {Record<string, string>} */
  watchHeaders() {
    return bearer(this.adminKey);
  }

  /** For the chat, which an admin's key opens too. @returns {Record<string, string>} */
  chatHeaders() {
    return bearer(this.apiKey || this.adminKey);
  }
}

/** The key in `#key=K`, where only percent signs stand for other characters. @param {string} hash */
function keyOf(hash) {
  const given = /[#&]key=([^&]*)/.exec(hash)?.[1] ?? '';
  try {
    return decodeURIComponent(given);
  } catch {
    return given;
  }
}

/** @param {string} key @returns {Record<string, string>} */
function bearer(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}
