// All components of the page, from one place.
export { Button, type ButtonProps, IconButton } from "./Button";
export { Dialog } from "./Dialog";
export { Disclosure } from "./Disclosure";
export { DropZone } from "./DropZone";
export { EmptyState } from "./EmptyState";
export { Field, NumberField, settleFields, TextArea, TextInput, useField } from "./Field";
export { Icon, type IconName, Logo } from "./Icon";
export { Markdown } from "./Markdown";
export { Menu, type MenuItem } from "./Menu";
export { Picture } from "./Picture";
export { Progress } from "./Progress";
export { Combo, type Options, Select } from "./Select";
export { Slider } from "./Slider";
export { Switch } from "./Switch";
export { toast, type ToastKind, Toasts, toastUndo } from "./toast";
export { Card, View } from "./View";
export { Warnings } from "./Warnings";
export { useCombobox, useOutside } from "./useCombobox";
