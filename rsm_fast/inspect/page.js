"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const all = (selector) => Array.from(document.querySelectorAll(selector));
  const state = { layout: "tsne", atom: null, point: -1, pack: null };

  // -- the map -------------------------------------------------------------------------------

  const canvas = byId("plane");
  const points = data.points;
  let places = [];

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    return {
      atoms: [0, 1, 2, 3, 4, 5, 6, 7].map((index) => read(`--c${index}`)),
      other: read("--other"), ink: read("--ink"), ground: read("--ground"),
    };
  }

  function place(width, height) {
    const margin = 18;
    const list = data[state.layout];
    const xs = list.map((p) => p[0]), ys = list.map((p) => p[1]);
    const range = (values) => [Math.min(...values), Math.max(...values)];
    const [left, right] = range(xs), [low, high] = range(ys);
    const across = (width - 2 * margin) / (right - left || 1);
    const down = (height - 2 * margin) / (high - low || 1);
    const scaleX = Math.min(across, 1.5 * down), scaleY = Math.min(down, 1.5 * across);
    places = list.map((p) => [
      width / 2 + (p[0] - (left + right) / 2) * scaleX,
      height / 2 - (p[1] - (low + high) / 2) * scaleY,
    ]);
  }

  function draw() {
    if (!canvas) return;
    const { width, height } = canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    place(width, height);
    const paint = colours();
    const packed = new Set(state.pack === null ? [] : data.packs[state.pack].packed);
    const radius = points.length > 600 ? 3 : 4;
    const faded = (index) => state.atom !== null && points[index].atom !== state.atom;
    const order = points.map((_, index) => index)
      .sort((a, b) => (faded(b) - faded(a)) || (packed.has(a) - packed.has(b)));
    for (const index of order) {
      const [x, y] = places[index];
      const colour = points[index].colour;
      pen.globalAlpha = faded(index) ? 0.15 : 0.85;
      pen.fillStyle = colour < 0 ? paint.other : paint.atoms[colour];
      pen.beginPath();
      pen.arc(x, y, radius, 0, 2 * Math.PI);
      pen.fill();
      if (packed.has(index)) {
        pen.globalAlpha = 1;
        pen.strokeStyle = paint.ink;
        pen.lineWidth = 1.5;
        pen.beginPath();
        pen.arc(x, y, radius + 2.5, 0, 2 * Math.PI);
        pen.stroke();
      }
    }
    pen.globalAlpha = 1;
    if (state.point >= 0) {
      const [x, y] = places[state.point];
      pen.strokeStyle = paint.ink;
      pen.lineWidth = 2.5;
      pen.beginPath();
      pen.arc(x, y, radius + 5, 0, 2 * Math.PI);
      pen.stroke();
    }
  }

  function show(index) {
    state.point = index;
    const point = points[index];
    const who = [point.role, point.when, point.session].filter(Boolean).join(" · ");
    const atom = point.atom === null ? "in no atom yet" : `atom ${point.atom}`;
    byId("point-meta").textContent = `${point.id} · ${atom} · ${who}`;
    byId("point-text").textContent = point.text;
    draw();
  }

  function nearest(x, y, reach) {
    let best = -1, least = reach * reach;
    places.forEach(([px, py], index) => {
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least) { least = distance; best = index; }
    });
    return best;
  }

  function step(dx, dy) {
    if (state.point < 0) { show(0); return; }
    const [x, y] = places[state.point];
    let best = -1, least = Infinity;
    places.forEach(([px, py], index) => {
      const along = (px - x) * dx + (py - y) * dy;
      const aside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
      if (along > 0.5 && along + 3 * aside < least) { least = along + 3 * aside; best = index; }
    });
    if (best >= 0) show(best);
  }

  function choose(atom) {
    state.atom = state.atom === atom ? null : atom;
    all("[data-atom]").forEach((button) => {
      button.setAttribute("aria-pressed", String(Number(button.dataset.atom) === state.atom));
    });
    draw();
  }

  if (canvas) {
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "mouse") return;
      const index = nearest(event.offsetX, event.offsetY, 12);
      if (index >= 0 && index !== state.point) show(index);
    });
    canvas.addEventListener("click", (event) => {
      const index = nearest(event.offsetX, event.offsetY, 24);
      if (index < 0) return;
      show(index);
      if (points[index].atom !== null) choose(points[index].atom);
    });
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (moves[event.key]) {
        step(...moves[event.key]);
      } else if (event.key === "Enter" && state.point >= 0 && points[state.point].atom !== null) {
        choose(points[state.point].atom);
      } else if (event.key === "Escape" && state.atom !== null) {
        choose(state.atom);
      } else {
        return;
      }
      event.preventDefault();
    });
    all("[data-layout]").forEach((button) => button.addEventListener("click", () => {
      state.layout = button.dataset.layout;
      all("[data-layout]").forEach((other) => {
        other.setAttribute("aria-pressed", String(other === button));
      });
      draw();
    }));
    new ResizeObserver(draw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }
  all("[data-atom]").forEach((button) => button.addEventListener("click", () => {
    choose(Number(button.dataset.atom));
    if (button.dataset.jump) byId("map").scrollIntoView();
  }));

  // -- packs ---------------------------------------------------------------------------------

  const box = byId("query");

  function open(index) {
    state.pack = index;
    all("[data-query]").forEach((button) => {
      button.setAttribute("aria-pressed", String(Number(button.dataset.query) === index));
    });
    all(".pack").forEach((pack) => { pack.hidden = Number(pack.dataset.pack) !== index; });
    draw();
  }

  function filter() {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    all("[data-query]").forEach((button) => {
      const text = button.textContent.toLowerCase();
      button.hidden = !words.every((word) => text.includes(word));
      shown += button.hidden ? 0 : 1;
    });
    byId("no-query").hidden = shown > 0;
  }

  if (box) {
    box.addEventListener("input", filter);
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const first = all("[data-query]").find((button) => !button.hidden);
      if (first) open(Number(first.dataset.query));
    });
    all("[data-query]").forEach((button) => {
      button.addEventListener("click", () => open(Number(button.dataset.query)));
    });
    open(0);
  }
  draw();
})();
