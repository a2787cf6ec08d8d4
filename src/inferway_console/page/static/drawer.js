// What opens at the side: an engine, or the explanation of a request.

import { byId, setText } from "./dom.js";

export function openDrawer(title, children, onClose = () => {}) {
  const drawer = byId("drawer");
  setText(byId("drawer-title"), title);
  byId("drawer-body").replaceChildren(...children);
  drawer.addEventListener("close", onClose, { once: true });
  if (!drawer.open) drawer.showModal();
}

byId("drawer").addEventListener("click", (event) => {
  if (event.target === byId("drawer")) byId("drawer").close(); // beside it
});
