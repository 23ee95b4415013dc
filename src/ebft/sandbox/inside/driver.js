// The tests of one problem, run against a program in another process; see driver.py.
'use strict';
const fs = require('fs');
const v8 = require('v8');
const [read, write] = process.argv.slice(2, 4).map(Number);
const job = JSON.parse(fs.readFileSync(0, 'utf8'));
const LONGEST = 32 * 2 ** 20;
let calls = 0;
let ended = null;

function stop(message) {
  ended = message;
  throw new Error(message);
}

function exactly(count) {
  const data = Buffer.alloc(count);
  for (let at = 0; at < count; ) {
    let got = 0;
    try { got = fs.readSync(read, data, at, count - at, null); } catch { /* the same as an end */ }
    if (!got) stop('the program has ended');
    at += got;
  }
  return data;
}

function receive() {
  const length = exactly(4).readUInt32BE(0);
  if (length > LONGEST) stop('a malformed message');
  let message;
  try { message = v8.deserialize(exactly(length)); } catch { stop('a malformed message'); }
  if (typeof message !== 'object' || message === null) stop('a malformed message');
  if (Object.hasOwn(message, 'error')) throw new Error(String(message.error).slice(0, 500));
  return message.value;
}

function call(...args) {
  if (ended !== null) stop(ended);
  calls += 1;
  const body = v8.serialize({ args });
  const data = Buffer.alloc(4 + body.length);
  data.writeUInt32BE(body.length, 0);
  body.copy(data, 4);
  try {
    for (let at = 0; at < data.length; ) at += fs.writeSync(write, data, at);
  } catch { stop('the program has ended'); }
  return receive();
}

const report = (status, message) => {
  fs.writeSync(1, JSON.stringify({ status, message: String(message).slice(0, 500) }));
  process.exit(0);
};

process.on('uncaughtException', (error) => report('failed', error));
try {
  receive();
  new Function('require', job.name, job.tests)(require, call);
} catch (error) {
  report('failed', error && error.message ? error.message.split('\n')[0] : error);
}
if (ended !== null) report('failed', ended);
if (!calls) report('error', 'the tests never called the program');
report('passed', '');
