// Jobs in words.

const STATUSES = {
  queued: "Waiting for a worker",
  running: "Running",
  succeeded: "Done",
  completed_with_errors: "Done, some pictures failed",
  failed: "No picture could be explained",
  cancelled: "Cancelled",
};
const UNITS = ["bytes", "kB", "MB", "GB", "TB"];

export const isOver = ({ status }) => status !== "queued" && status !== "running";

export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

export const nameOf = ({ name, progress }) => name || count(progress.total, "picture");

export function size(bytes) {
  const power = Math.min(UNITS.length - 1, Math.floor(Math.log10(Math.max(1, bytes)) / 3));
  const value = bytes / 1000 ** power;
  return `${value.toFixed(power && value < 10 ? 1 : 0)} ${UNITS[power]}`;
}

// How far a job is, how fast, and for how much longer.
export function progressWords({ status, waiting_for: cause, progress, rate_per_s: rate, eta_s: left }) {
  const { total, done, failed } = progress;
  const parts = [`${STATUSES[status]}: ${done.toLocaleString("en")} of ${count(total, "picture")}`];
  if (failed) parts.push(`${failed.toLocaleString("en")} failed`);
  if (!isOver({ status })) {
    if (cause) parts.push(`held up by ${cause.replaceAll("_", " ")}`);
    if (rate) parts.push(rate >= 1 ? `${rate.toFixed(1)} a second` : `${(1 / rate).toFixed(1)} s each`);
    if (left) parts.push(`about ${duration(left)} left`);
  }
  return parts.join(", ");
}

function duration(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}
