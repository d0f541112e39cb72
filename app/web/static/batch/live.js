// Follows a job that is not over: live as long as the server has a stream to spare, else by asking now and then.

import { eventsOf } from "./events.js";
import { isOver } from "./words.js";
import { Problem, ask, call, onceKeyed, pause } from "../server.js";

const ASK_AGAIN_MS = 3000;
const COME_AGAIN_MS = 2000; // after a connection was lost, unless the server says otherwise

// Calls `told` with the job as it goes on, `item` with each picture that is finished, and `failed` if nobody answers.
export async function follow(job, { told, item, failed, signal }) {
  // Each outcome is an event with a number, so what is done by now need not be told again.
  const seen = { last: job.progress.done, retry: COME_AGAIN_MS };
  try {
    while (!(await watch(job.id, seen, { told, item, signal }))) await pause(seen.retry, signal);
  } catch (error) {
    if (signal.aborted) return;
    if (error instanceof Problem) await poll(job.id, { told, failed, signal }); // the stream was refused
    else failed(error);
  }
}

// Watches one stream until the job is over, which it returns, or the connection is lost.
async function watch(id, seen, { told, item, signal }) {
  let stream;
  try {
    const headers = { Accept: "text/event-stream", "Last-Event-ID": seen.last };
    stream = await call(`v1/jobs/${id}/events`, { headers, signal, cache: "no-store" });
  } catch (error) {
    if (error.status === 0) return false; // nobody answered
    throw error;
  }
  for await (const { type, data, id: number, retry } of unlessLost(eventsOf(stream), signal)) {
    seen.retry = retry ?? seen.retry;
    seen.last = number ?? seen.last;
    if (type === "item") item(JSON.parse(data));
    if (type === "progress" || type === "end") told(JSON.parse(data));
    if (type === "end") return true;
  }
  return false;
}

// What comes until the connection is lost.
async function* unlessLost(events, signal) {
  for (;;) {
    const { done, value } = await events.next().catch(() => ({ done: true }));
    signal.throwIfAborted();
    if (done) return;
    yield value;
  }
}

async function poll(id, { told, failed, signal }) {
  try {
    const job = await ask(`v1/jobs/${id}`, { signal });
    told(job, { missed: true });
    if (isOver(job)) return;
  } catch (error) {
    if (signal.aborted) return;
    failed(error);
    if (!(error instanceof Problem && error.passing)) {
      onceKeyed(() => signal.aborted || poll(id, { told, failed, signal }));
      return;
    }
  }
  setTimeout(() => signal.aborted || poll(id, { told, failed, signal }), ASK_AGAIN_MS);
}
