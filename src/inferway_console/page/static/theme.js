// Before anything is drawn, so that nothing flashes.
"use strict";
(() => {
  let wanted = null;
  try { wanted = localStorage.getItem("inferway-theme"); } catch { /* storage may be refused */ }
  if (wanted === "light" || wanted === "dark") document.documentElement.dataset.theme = wanted;
})();
