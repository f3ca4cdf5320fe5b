export const project = 1;
