// The page of jobs: many pictures go in, and come out as a contact sheet. What is open stands in the fragment.

import { $ } from "../dom.js";
import { closeJob, openJob, showJob } from "./job.js";
import { listJobs, markJob } from "./jobs.js";
import { offerUpload } from "./upload.js";

const opened = () => new URLSearchParams(location.hash.slice(1)).get("job");

function route() {
  const id = opened();
  markJob(id);
  if (id) openJob(id);
  else closeJob();
}

function started(job) {
  location.hash = new URLSearchParams({ job: job.id });
  listJobs();
}

function changed(job) {
  if (job.id !== opened()) return;
  if (job.deleted) location.hash = "";
  else showJob(job);
}

addEventListener("hashchange", () => {
  route();
  if (opened()) $("job-title").focus();
});
offerUpload(started);
listJobs(changed);
route();
