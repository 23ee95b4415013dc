// The program under test, and a loop that serves calls into it. Nothing in this process is trusted; see candidate.py.
'use strict';
const fs = require('fs');
const v8 = require('v8');
const [read, write] = process.argv.slice(2, 4).map(Number);
const job = JSON.parse(fs.readFileSync(0, 'utf8'));
process.argv.length = 1;

function exactly(count) {
  const data = Buffer.alloc(count);
  for (let at = 0; at < count; ) {
    const got = fs.readSync(read, data, at, count - at, null);
    if (!got) process.exit(1);
    at += got;
  }
  return data;
}

function send(message) {
  const body = v8.serialize(message);
  const data = Buffer.alloc(4 + body.length);
  data.writeUInt32BE(body.length, 0);
  body.copy(data, 4);
  for (let at = 0; at < data.length; ) at += fs.writeSync(write, data, at);
}

const describe = (error) => String(error && error.stack ? error.stack.split('\n')[0] : error).slice(0, 500);

let called;
try {
  const exported = { exports: {} };
  let make;
  let firstError;
  for (const source of job.sources) {  // the first interpretation of the answer that is JavaScript
    try {
      make = new Function('require', 'module', 'exports',
        `${source}\n;return typeof ${job.name} === 'undefined' ? module.exports.${job.name} : ${job.name};`);
      break;
    } catch (error) {
      firstError = firstError || error;
    }
  }
  if (!make) throw firstError;
  called = make(require, exported, exported.exports);
  send({ value: null });
} catch (error) {
  send({ error: describe(error) });
  process.exit(0);
}
for (;;) {
  const { args } = v8.deserialize(exactly(exactly(4).readUInt32BE(0)));
  let answer;
  try {
    answer = { value: called(...args) };
    v8.serialize(answer);
  } catch (error) {
    answer = { error: describe(error) };
  }
  send(answer);
}
