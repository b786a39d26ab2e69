// Predicts, trains and compares without leaving the page. Everything that is shown is set as text, never as markup.
"use strict";

const place = document.getElementById("model");
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  const made = ["svg", "rect", "line", "polyline"].includes(name)
    ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function percent(share) {
  return share > 0.9995 && share < 1 ? "> 99.9 %" : `${(100 * share).toFixed(1)} %`;
}

function bar(share, low) {
  return element("svg", {class: "sure", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true"},
    element("rect", {class: "all", width: 100, height: 6, rx: 2}),
    element("rect", {class: low ? "part low" : "part", width: 100 * share, height: 6, rx: 2}));
}

function table(caption, heads, rows) {
  const body = element("tbody");
  for (const cells of rows) {
    const line = element("tr");
    cells.forEach((cell, at) => line.append(element("td", {"data-head": heads[at]},
      element("div", {}, ...(Array.isArray(cell) ? cell : [cell])))));
    body.append(line);
  }
  const head = element("tr");
  for (const text of heads) head.append(element("th", {scope: "col"}, text));
  return element("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": caption},
    element("table", {}, element("thead", {}, head), body));
}

async function send(method, address, body) {
  const response = await fetch(address, {method, body, headers: body ? {"Content-Type": "application/octet-stream"} : {}});
  let found;
  try { found = await response.json(); } catch { found = {error: `the server answered ${response.status}`}; }
  if (!response.ok) throw new Error(found.error);
  return found;
}

function given(form) {
  const file = form.elements.file?.files[0];
  if (file) return file;
  const text = form.elements.text?.value ?? "";
  if (!text.trim()) throw new Error("Choose a file, or write something to ask.");
  return text;
}

function handle(id, work) {
  const form = document.getElementById(id);
  if (!form) return;
  const answer = form.querySelector(".answer");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    answer.replaceChildren("…");
    try {
      answer.replaceChildren(...await work(form));
    } catch (error) {
      answer.replaceChildren(element("p", {class: "bad", role: "alert"}, error.message));
    } finally {
      button.disabled = false;
    }
  });
}

function sure(row) {
  return [percent(row.probability), bar(row.probability, row.probability < 0.7)];
}

function looks(row) {
  if (row.novelty === null) return "–";
  const shown = row.novelty.toFixed(2);
  return row.novelty > 1 ? [element("span", {class: "bad"}, `novel (${shown})`)] : `familiar (${shown})`;
}

// The task a row was answered for, and those it might be instead.
function thinks(row, tasks, given) {
  if (given) return `${row.task} (given)`;
  const share = (task) => row.task_probabilities[tasks.indexOf(task)] ?? 0;
  const others = tasks.filter((task) => task !== row.task && share(task) >= 0.001).sort((a, b) => share(b) - share(a));
  const said = [row.task + " ", element("span", {class: "faint small"}, percent(share(row.task)))];
  if (others.length) said.push(element("div", {class: "faint small"},
    "or " + others.slice(0, 3).map((task) => `${task} ${percent(share(task))}`).join(", ")));
  return said;
}

const SHOWN = 200;

handle("ask", async (form) => {
  const task = form.elements.task.value;
  const query = new URLSearchParams({version: place.dataset.version, ...(task ? {task} : {})});
  if (form.elements.unknown?.checked) query.set("unknown", "zeros");
  const found = await send("POST", `/v2/models/${place.dataset.model}/predict?${query}`, given(form));
  const rows = found.rows.slice(0, SHOWN).map((row, number) => [
    String(number + 1), row.label, sure(row),
    thinks(row, found.tasks, Boolean(task)),
    `${row.entropy.toFixed(2)} nats`, looks(row)]);
  const parts = [table("Predictions", ["Row", "Label", "Probability", "Task", "Entropy", "Novelty"], rows)];
  const total = found.rows.length;
  const count = total > SHOWN ? `The first ${SHOWN} of ${total} rows. ` : total > 1 ? `${total} rows. ` : "";
  const right = found.accuracy === null ? "" : `Accuracy by the file's own labels: ${found.accuracy.toFixed(1)} %.`;
  if (count || right) parts.push(element("p", {class: "faint"}, count + right));
  return parts;
});

handle("compare", async (form) => {
  const versions = `${form.elements.one.value},${form.elements.two.value}`;
  const found = await send("POST", `/v2/models/${place.dataset.model}/compare?versions=${versions}`, given(form));
  const same = found.task_incremental.filter((one) => one.bit_identical).map((one) => one.task);
  const [one, two] = found.versions;
  const parts = [];
  if (same.length) parts.push(element("p", {class: "good"},
    `✓ Task-incremental (${same.join(", ")}): label, probability and entropy of every row are bit-identical.`));
  for (const other of found.task_incremental.filter((task) => !task.bit_identical)) parts.push(element("p", {class: "bad"},
    `Task-incremental (${other.task}): ${other.different.join(", ")} of some rows differ. The task was updated in between.`));
  parts.push(element("p", {}, found.changed.length
    ? `Class-incremental: ${found.changed.length} of ${found.rows.length} rows have another label, since version ${two} has other tasks.`
    : `Class-incremental: all ${found.rows.length} rows have the same label.`));
  const rows = found.changed.slice(0, SHOWN).map((row) => {
    const {before, after} = found.rows[row];
    return [String(row + 1), `${before.label} (${before.task})`, sure(before), `${after.label} (${after.task})`, sure(after)];
  });
  if (rows.length) parts.push(table("Rows that changed", ["Row", `Version ${one}`, "Probability", `Version ${two}`, "Probability"], rows));
  return parts;
});

handle("teach", async (form) => {
  const query = new URLSearchParams({task: form.elements.task.value});
  if (form.elements.validate.checked) query.set("validation_fraction", "0.2");
  const job = await send("POST", `/v2/models/${place.dataset.model}/tasks?${query}`, given(form));
  form.reset();
  watch(card(job), job.id);
  return [];
});

function card(job) {
  const made = element("article", {class: "card job", "data-job": job.id},
    element("h3", {}, `${job.kind} “${job.task}” `, element("span", {class: `state ${job.state}`}, job.state)));
  document.getElementById("jobs").prepend(made);
  return made;
}

function watch(article, id) {
  const state = article.querySelector(".state");
  const told = element("p", {class: "faint", role: "status"}, "starting …");
  const done = element("progress", {"aria-label": "How far it is", max: 1});
  const cancel = element("button", {class: "quiet", type: "button"}, "Cancel");
  const loss = element("polyline", {class: "loss"}), accuracy = element("polyline", {class: "accuracy"});
  const curve = element("svg", {class: "curve", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img",
    "aria-label": "Accuracy and loss, epoch by epoch"},
    element("line", {class: "axis", x1: 0, x2: 100, y1: 99.5, y2: 99.5}), loss, accuracy);
  const key = element("p", {class: "key small"}, element("span", {class: "shared"}), " accuracy ",
    element("span", {class: "new"}), " loss");
  article.append(told, done, curve, key, cancel);
  cancel.addEventListener("click", () => {
    cancel.disabled = true;
    send("DELETE", `/v2/jobs/${id}`).catch((error) => { told.textContent = error.message; });
  });
  const epochs = [];
  const events = new EventSource(`/v2/jobs/${id}/events`);
  const set = (text) => { state.textContent = text; state.className = `state ${text}`; };
  events.addEventListener("state", (event) => set(JSON.parse(event.data).state));
  events.addEventListener("start", () => { epochs.length = 0; });
  events.addEventListener("epoch", (event) => {
    const epoch = JSON.parse(event.data);
    epochs.push(epoch);
    const most = Math.max(...epochs.map((one) => one.loss));
    const x = (at) => (100 * at) / Math.max(epoch.of - 1, 1);
    loss.setAttribute("points", epochs.map((one, at) => `${x(at)},${99 - 96 * one.loss / most}`).join(" "));
    accuracy.setAttribute("points", epochs.map((one, at) => `${x(at)},${99 - 0.96 * (one.accuracy ?? 0)}`).join(" "));
    done.value = epoch.done / epoch.of;
    told.textContent = `${epoch.phase}, epoch ${epoch.done} of ${epoch.of}: loss ${epoch.loss.toFixed(3)}, ` +
      `accuracy ${(epoch.accuracy ?? 0).toFixed(1)} %, ${epoch.reused} factors shared, ${epoch.new} new`;
  });
  for (const end of ["done", "failed", "cancelled"]) {
    events.addEventListener(end, (event) => {
      events.close();
      const job = JSON.parse(event.data).job;
      set(end);
      cancel.remove();
      done.remove();
      told.replaceChildren(end === "done" ? `Version ${job.version} is served now. ` : job.error ?? "Nothing was changed.");
      if (end === "done") told.append(element("a", {href: `?version=${job.version}`}, "Look at it"));
    });
  }
}

for (const id of (document.getElementById("jobs")?.dataset.running ?? "").split(" ").filter(Boolean)) {
  const article = document.querySelector(`[data-job="${id}"]`);
  if (article) watch(article, id);
}

for (const area of document.querySelectorAll("[data-drop]")) {
  const input = area.querySelector("input");
  area.addEventListener("dragover", (event) => { event.preventDefault(); area.classList.add("over"); });
  area.addEventListener("dragleave", () => area.classList.remove("over"));
  area.addEventListener("drop", (event) => {
    event.preventDefault();
    area.classList.remove("over");
    input.files = event.dataTransfer.files;
  });
}
