// Buttons: with words, and with an icon alone (whose words are its label).
import type { ButtonHTMLAttributes, ReactNode, Ref } from "react";
import { Icon, type IconName } from "./Icon";
import css from "./Button.module.css";

export interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  variant?: "primary" | "plain" | "quiet" | "danger";
  size?: "s" | "m" | "l";
  icon?: IconName;
  /** Works on it: cannot be pressed again, and says so. */
  busy?: boolean;
  children?: ReactNode;
  ref?: Ref<HTMLButtonElement>;
}

export function Button({ variant = "plain", size = "m", icon, busy = false, disabled, className, children, type = "button", ...rest }: ButtonProps) {
  return (
    <button
      type={type}
      {...rest}
      disabled={disabled || busy}
      aria-busy={busy || undefined}
      className={[css.button, css[variant], css[`size-${size}`], className].filter(Boolean).join(" ")}
    >
      {busy ? <span className={css.spin} aria-hidden="true" /> : icon && <Icon name={icon} size={size === "s" ? 16 : 18} />}
      {children}
    </button>
  );
}

export interface IconButtonProps extends Omit<ButtonProps, "children" | "icon"> {
  label: string;
  icon: IconName;
  /** For switches: pressed or not. */
  pressed?: boolean;
}

export function IconButton({
  label,
  icon,
  pressed,
  variant = "quiet",
  size = "m",
  busy = false,
  disabled,
  className,
  type = "button",
  ...rest
}: IconButtonProps) {
  return (
    <button
      type={type}
      title={label}
      {...rest}
      aria-label={label}
      aria-pressed={pressed}
      disabled={disabled || busy}
      aria-busy={busy || undefined}
      className={[css.button, css[variant], css.square, css[`size-${size}`], className].filter(Boolean).join(" ")}
    >
      {busy ? <span className={css.spin} aria-hidden="true" /> : <Icon name={icon} size={size === "s" ? 18 : 20} />}
    </button>
  );
}
