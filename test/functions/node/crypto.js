// Digests, codes of authentication, keys from passwords, and a round of AES-GCM.
'use strict';
const crypto = require('crypto');
const {numbers, serve} = require('./serve.js');

serve(seed => {
  const draw = numbers(seed);
  const text = Buffer.from(Array.from({length: 4096 + seed % 6 * 4096}, () => draw() & 255));
  const key = crypto.pbkdf2Sync('password' + seed, 'salt', 100 + seed % 5 * 50, 32, 'sha256');
  const nonce = crypto.createHash('sha256').update(String(seed)).digest().subarray(0, 12);
  const seal = crypto.createCipheriv('aes-256-gcm', key, nonce);
  const sealed = Buffer.concat([seal.update(text), seal.final()]);
  const open = crypto.createDecipheriv('aes-256-gcm', key, nonce);
  open.setAuthTag(seal.getAuthTag());
  const opened = Buffer.concat([open.update(sealed), open.final()]);
  return {
    same: opened.equals(text) && !sealed.equals(text),
    key: key.toString('hex'),
    digest: crypto.createHash('sha512').update(opened).digest('hex'),
    code: crypto.createHmac('sha256', key).update(opened).digest('hex'),
  };
});
