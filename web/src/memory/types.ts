// The shapes of GET /memory, as far as the view uses them.

export interface Device {
  device: string;
  type: string;
  index: number | null;
  total: number;
  free: number;
  /** Kept free for computing. */
  reserved: number;
  weights_resident: number;
  weights_buffer: number;
  peak: number;
}

export interface Claim {
  claimant: { client_id: string; node_id: string };
  prompt_id: string;
  policy: string;
  source: "default" | "node_input" | "policy_node" | "api";
  at: number;
}

export interface Model {
  weights_id: string;
  content: string[];
  component: string;
  class: string;
  bytes_total: number;
  /** Bytes by accelerator. */
  residency: Record<string, number>;
  host_bytes: number;
  state: "resident" | "partial" | "offloaded" | "released" | "release_failed";
  effective_policy: string;
  policy_source: Claim["source"];
  claims: Claim[];
  /** Prompts that use it now. */
  leases: string[];
  handles: { model_id: string; compute_device: string; patches: number; placement?: string | null }[];
  last_used: number | null;
  demoted_by: string | null;
}

export interface MemoryEvent {
  seq: number | null;
  time: number;
  kind: string;
  trigger?: string | null;
  prompt_id?: string | null;
  node_id?: string | null;
  weights_id?: string | null;
  device?: string | null;
  bytes_before?: number | null;
  bytes_after?: number | null;
  policy?: string | null;
  policy_source?: string | null;
  decision?: string | null;
  reason?: string | null;
  error?: string | null;
  numbers?: Record<string, number>;
}

export interface Overview {
  devices: Device[];
  models: Model[];
  decisions: MemoryEvent[];
  last_seq: number;
}

/** The answer of POST /free with `wait`. */
export interface FreeReport {
  models: { weights_id: string; before: Record<string, number>; after: Record<string, number>; error: string | null }[];
  ram_before: number;
  ram_after: number;
  duration: number;
  cache_reset: boolean;
}
