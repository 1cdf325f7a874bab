// Zooms into the pictures over time. Without this script, the page shows the whole call.
"use strict";
(() => {
  const WIDTH = 700, BINS = 700, LEFT = 150;
  const data = JSON.parse(document.getElementById("zoom-data").textContent);
  const fine = atob(Object.values(data.lanes)[0]).length;
  const least = Math.min(1, 100 / fine);
  let from = 0, to = 1;

  // Cumulative sums of the bins: the mean over any interval is a difference of two sums.
  const sums = Object.fromEntries(Object.entries(data.lanes).map(([name, text]) => {
    const sum = new Float64Array(fine + 1);
    atob(text).split("").forEach((c, i) => { sum[i + 1] = sum[i] + c.charCodeAt(0) / 255; });
    return [name, sum];
  }));
  const sumTo = (sum, share) => {
    const at = Math.min(Math.max(share * fine, 0), fine), i = Math.min(Math.floor(at), fine - 1);
    return sum[i] + (at - i) * (sum[i + 1] - sum[i]);
  };
  const means = (sum) => Array.from({ length: BINS }, (_, i) => {
    const a = from + (to - from) * i / BINS, b = from + (to - from) * (i + 1) / BINS;
    return (sumTo(sum, b) - sumTo(sum, a)) / ((b - a) * fine);
  });

  const steps = (values, height) => {
    let path = `M0 ${height}`;
    values.forEach((v, i) => {
      path += `V${(height * (1 - Math.min(v, 1))).toFixed(1)}H${((i + 1) * WIDTH / BINS).toFixed(1)}`;
    });
    return `${path}V${height}Z`;
  };
  const tickStep = (span, most) => {
    const power = 10 ** Math.floor(Math.log10(span / most));
    return [1, 2, 5, 10].map((f) => f * power).find((step) => step >= span / most * (1 - 1e-9));
  };
  const byteUnit = (bytes) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    const power = Math.max(0, Math.min(Math.floor(Math.log(Math.max(bytes, 1)) / Math.log(1024) + 0.05), 5));
    return [units[power], 1024 ** power];
  };

  const drawTicks = () => {
    const total = data.seconds / data.unit[1], first = from * total, last = to * total;
    const step = tickStep(last - first, 8), decimals = Math.max(0, -Math.floor(Math.log10(step)));
    let marks = "";
    for (let i = Math.ceil(first / step * (1 - 1e-9)); i * step <= last * (1 + 1e-9); i += 1) {
      const x = ((i * step - first) / (last - first) * WIDTH).toFixed(2);
      marks += `<line x1="${x}" x2="${x}" y1="0" y2="5"></line>`
        + `<text x="${x}" y="18" text-anchor="middle">${(i * step).toFixed(decimals)}</text>`;
    }
    document.querySelectorAll(".time-ticks").forEach((g) => { g.innerHTML = marks; });
  };

  const draw = () => {
    const shown = Object.fromEntries(Object.entries(sums).map(([name, sum]) => [name, means(sum)]));
    const most = data.most * Math.max(...shown["read-rate"], ...shown["write-rate"]);
    const [unit, size] = byteUnit(most);
    const top = most > 0 ? tickStep(most / size, 1) : 1;
    document.getElementById("rate-top").textContent = `${+top.toPrecision(3)} ${unit}/s`;
    document.querySelectorAll("[data-lane]").forEach((path) => {
      const name = path.dataset.lane;
      const scale = name.endsWith("rate") ? data.most / (top * size) : 1;
      path.setAttribute("d", steps(shown[name].map((v) => v * scale), +path.dataset.height));
    });
    document.querySelectorAll(".zoomed").forEach((svg) => {
      svg.setAttribute("viewBox", `${from} 0 ${to - from} 1`);
    });
    drawTicks();
  };

  const look = (a, b) => {
    const width = Math.min(1, Math.max(b - a, least)), middle = (a + b) / 2;
    from = Math.min(Math.max(middle - width / 2, 0), 1 - width);
    to = from + width;
    draw();
  };

  const zoom = {
    in: (w) => look(from + w / 4, to - w / 4),
    out: (w) => look(from - w / 2, to + w / 2),
    left: (w) => look(from - w / 2, to - w / 2),
    right: (w) => look(from + w / 2, to + w / 2),
    all: () => look(0, 1),
  };
  document.querySelectorAll("[data-zoom]").forEach((button) => {
    button.addEventListener("click", () => zoom[button.dataset.zoom](to - from));
  });
  document.querySelectorAll(".zoom").forEach((p) => p.classList.add("active"));

  document.querySelectorAll(".catcher").forEach((catcher) => {
    const svg = catcher.ownerSVGElement;
    const share = (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      return Math.min(Math.max((point.x - LEFT) / WIDTH, 0), 1);
    };
    let start = null;
    const chosen = catcher.cloneNode();
    chosen.setAttribute("class", "chosen");
    chosen.setAttribute("width", 0);
    svg.insertBefore(chosen, catcher);
    const choose = (a, b) => {
      chosen.setAttribute("x", LEFT + WIDTH * Math.min(a, b));
      chosen.setAttribute("width", WIDTH * Math.abs(b - a));
    };
    catcher.classList.add("active");
    catcher.addEventListener("pointerdown", (event) => {
      start = share(event);
      catcher.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    catcher.addEventListener("pointermove", (event) => { if (start !== null) choose(start, share(event)); });
    catcher.addEventListener("pointerup", (event) => {
      const end = share(event), span = to - from;
      choose(0, 0);
      if (start !== null && Math.abs(end - start) > 0.005) {
        look(from + span * Math.min(start, end), from + span * Math.max(start, end));
      }
      start = null;
    });
    catcher.addEventListener("pointercancel", () => { start = null; choose(0, 0); });
    catcher.addEventListener("dblclick", () => look(0, 1));
  });
})();
