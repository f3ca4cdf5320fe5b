export const plain = 1;

// The front-end check looks for this.
window.frescoPackScript = 1;
