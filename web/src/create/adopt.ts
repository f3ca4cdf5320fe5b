// Brings values from elsewhere into the form: settings of a picture, or a picture to start from.
import { useInfo } from "../state/info";
import { toast } from "../ui";
import { drawingModels } from "./detected";
import { usePainter } from "./painter";
import { storedSize } from "./pictures";
import { useCreate } from "./store";
import { CHANGE_PICTURE, cleaned, type CreateValues, withImage } from "./values";

/** The form after taking them in. A seed that came along is kept, so that the same picture can be made again; a model that
 *  is not here leaves the one that was chosen; a form that starts from a picture stops doing so unless they say otherwise. */
export function adopted(form: CreateValues, values: Partial<CreateValues>, models: string[]): CreateValues {
  const next = cleaned({ ...form, image: null, mask: null, imageSize: null, ...values, count: 1, redraw: true });
  if (values.seed !== undefined) next.seedLocked = true;
  if (values.image && values.denoise === undefined) next.denoise = CHANGE_PICTURE;
  if (models.length > 0 && !models.includes(next.model)) next.model = form.model;
  return next;
}

export async function adopt(values: Partial<CreateValues>, paint = false): Promise<void> {
  const { update, values: before } = useCreate.getState();
  update((form) => adopted(form, values, drawingModels(useInfo.getState().models)));
  const { image } = useCreate.getState().values;
  if (!image) return;
  try {
    const size = await storedSize(image);
    // A picture that was only handed over gives its shape; one that belongs to settings keeps theirs.
    update((v) => (values.width ? { ...v, imageSize: size } : { ...withImage(v, image, size), mask: v.mask }));
    if (paint) usePainter.getState().start(before);
  } catch {
    update((v) => ({ ...v, image: null, mask: null, imageSize: null }));
    toast("The start picture's file is gone.", "warn");
  }
}
