// Opens a native dialog while its component is there; closing it before it goes gives the focus back.
import { type RefObject, useLayoutEffect } from "react";

export function useModal(dialog: RefObject<HTMLDialogElement | null>): void {
  useLayoutEffect(() => {
    const element = dialog.current;
    if (element && !element.open) element.showModal();
    return () => element?.close();
  }, [dialog]);
}
