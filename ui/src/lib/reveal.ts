/** Scroll the row of an element sideways so that the element is inside of it. */
export const reveal = (element: HTMLElement | null): void => {
  const row = element?.parentElement;
  if (element === null || row === null || row === undefined) return;
  const [own, around] = [element.getBoundingClientRect(), row.getBoundingClientRect()];
  if (own.right > around.right) row.scrollLeft += own.right - around.right;
  else if (own.left < around.left) row.scrollLeft -= around.left - own.left;
};
