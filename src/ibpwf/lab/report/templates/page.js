"use strict";
(function () {
  const tip = document.getElementById("tip");
  let current = null;

  // The titles serve where scripts do not run; with scripts, the tip replaces the browser's slower one.
  for (const mark of document.querySelectorAll(".mark")) {
    const title = mark.querySelector("title");
    if (title) {
      mark.dataset.tip = title.textContent;
      title.remove();
    }
  }

  function show(mark) {
    if (mark === current) return;
    if (current) current.classList.remove("on");
    current = mark;
    if (!mark) {
      tip.hidden = true;
      return;
    }
    mark.classList.add("on");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    place();
  }

  function place() {
    if (!current) return;
    const at = current.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const left = at.left + at.width / 2 - size.width / 2;
    const above = at.top - size.height - 8;
    tip.style.left = Math.max(8, Math.min(left, window.innerWidth - size.width - 8)) + "px";
    tip.style.top = (above > 4 ? above : Math.min(at.bottom + 8, window.innerHeight - size.height - 4)) + "px";
  }

  function pointed(event) {
    const mark = event.target instanceof Element ? event.target.closest(".mark") : null;
    show(mark);
  }
  document.addEventListener("pointermove", pointed);
  document.addEventListener("pointerdown", pointed);
  document.addEventListener("scroll", place, { passive: true, capture: true });

  function middle(mark) {
    const box = mark.getBBox();
    return [box.x + box.width / 2, box.y + box.height / 2];
  }

  // The mark next to the current one in a direction: the nearest row (or column) first, then the nearest in it.
  function next(marks, from, dx, dy) {
    const [x, y] = middle(from);
    let best = null, least = Infinity;
    for (const mark of marks) {
      const [a, b] = middle(mark);
      const along = dx ? (a - x) * dx : (b - y) * dy;
      const across = Math.abs(dx ? b - y : a - x);
      if (along <= 0.01 || (dx && across > 0.5)) continue;
      const far = along * (dy ? 1000 : 1) + across;
      if (far < least) { least = far; best = mark; }
    }
    return best || from;
  }

  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  for (const chart of document.querySelectorAll("svg.chart")) {
    const marks = Array.from(chart.querySelectorAll(".mark"));
    if (!marks.length) continue;
    chart.addEventListener("keydown", function (event) {
      if (event.key === "Escape") return show(null);
      const step = steps[event.key];
      if (!step) return;
      event.preventDefault();
      show(current && chart.contains(current) ? next(marks, current, step[0], step[1]) : marks[0]);
      current.scrollIntoView({ block: "nearest", inline: "nearest" });
      place();
    });
    chart.addEventListener("blur", function () { show(null); });
  }

  let closed = [];
  window.addEventListener("beforeprint", function () {
    closed = Array.from(document.querySelectorAll("details:not([open])"));
    for (const part of closed) part.open = true;
  });
  window.addEventListener("afterprint", function () {
    for (const part of closed) part.open = false;
  });
})();
