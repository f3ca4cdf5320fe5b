// One device: a bar of what fills its memory, and the same in numbers.
import { bytes } from "../state/format";
import { Card } from "../ui";
import type { Device } from "./types";
import { capital, deviceName, partsOf } from "./words";
import css from "./memory.module.css";

export function DeviceCard({ device }: { device: Device }) {
  const parts = partsOf(device);
  const share = (n: number) => `${(n / parts.total) * 100}%`;
  const rows: [string, number, string | undefined][] = [
    ["Models", parts.models, css.isModels],
    ["Other", parts.other, css.isOther],
    ["Free", parts.free, css.isFree],
  ];
  return (
    <Card className={css.device}>
      <div className={css.deviceHead}>
        <h3>{capital(deviceName(device.device))}</h3>
        <span className={css.soft}>
          {bytes(device.total)}
          {device.device !== "cpu" && ` · ${device.device}`}
        </span>
      </div>
      <div className={css.bar} aria-hidden="true">
        {rows.map(([name, n, look]) => n > 0 && <span key={name} className={look} style={{ width: share(n) }} />)}
      </div>
      <dl className={css.legend}>
        {rows.map(([name, n, look]) => (
          <div key={name}>
            <dt>
              <span className={`${css.swatch} ${look}`} aria-hidden="true" />
              {name}
            </dt>
            <dd>{bytes(n)}</dd>
          </div>
        ))}
      </dl>
      {device.type !== "cpu" && device.reserved > 0 && <p className={css.note}>{bytes(device.reserved)} of it are kept for computing.</p>}
    </Card>
  );
}
