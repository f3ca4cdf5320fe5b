//! The route table: one row per method and path. Registration under `/api` too, `Allow`, `HEAD` and the OpenAPI document
//! are all made from it.

use crate::http::query::QueryKeys;
use crate::http::route::{Route, Verb};
use crate::routes::events_sse;
use crate::routes::far;
use crate::routes::health;
use crate::routes::history;
use crate::routes::internal;
use crate::routes::jobs;
use crate::routes::memory;
use crate::routes::models;
use crate::routes::object_info;
use crate::routes::openapi;
use crate::routes::outputs;
use crate::routes::pack_host;
use crate::routes::packs;
use crate::routes::prompt;
use crate::routes::queue;
use crate::routes::settings;
use crate::routes::static_files;
use crate::routes::system;
use crate::routes::upload;
use crate::routes::userdata;
use crate::routes::view;
use crate::routes::websocket;
use crate::routes::workflow;
use crate::services::metrics;
use crate::services::users;

const JSON_OBJECT: Option<&str> = Some("JSON object");

macro_rules! routes {
    ($($verb:ident $path:literal $kind:ident $handler:path, $summary:literal
        $(, query: $query:expr)? $(, body: $body:expr)? , answers: $answers:expr;)*) => {
        pub(crate) static ROUTES: &[Route] = &[$(Route {
            verb: Verb::$verb,
            path: $path,
            twice: routes!(@twice $kind),
            summary: $summary,
            query: { #[allow(unused_mut, unused_assignments, clippy::allow_attributes, reason = "most rows have none")]
                     { const Q: &[QueryKeys] = routes!(@or &[] $(, $query)?); Q } },
            body: { const B: Option<&str> = routes!(@or None $(, $body)?); B },
            answers: $answers,
            handler: |request| Box::pin($handler(request)),
        }),*];
    };
    (@twice both) => { true };
    (@twice once) => { false };
    (@or $default:expr) => { $default };
    (@or $default:expr, $given:expr) => { $given };
}

routes! {
    Get "/" both static_files::index, "Fresco's page, or the first page of the front-end that was asked for",
        answers: &[(200, "HTML")];
    Get "/status" once static_files::status, "A few numbers about this server as a page",
        answers: &[(200, "HTML")];
    Get "/ws" both websocket::connect, "WebSocket of events",
        query: &[websocket::SocketQuery::KEYS],
        answers: &[(101, "switching protocols"), (400, "not an upgrade")];

    Get "/prompt" both prompt::get, "How many prompts wait or run",
        answers: &[(200, "exec_info")];
    Post "/prompt" both prompt::post, "Queue a prompt; answered once it is stored durably",
        body: Some("JSON object: prompt, prompt_id, client_id, number, front, extra_data, partial_execution_targets"),
        answers: &[(200, "prompt_id, number, node_errors"), (400, "error and node_errors"), (413, "too large"),
            (429, "the queue is full"), (503, "could not be stored")];
    Get "/queue" both queue::get, "Running and waiting prompts",
        answers: &[(200, "queue_running, queue_pending")];
    Post "/queue" both queue::post, "Remove waiting prompts: clear, delete",
        body: JSON_OBJECT, answers: &[(200, "done")];
    Post "/interrupt" both system::interrupt, "Stop the running prompt, or only if it has the given prompt_id",
        body: Some("nothing, or a JSON object with prompt_id"), answers: &[(200, "done")];
    Post "/free" both memory::free, "Unload models or forget cached results after the running prompt",
        body: Some("JSON object: unload_models, free_memory; retention (override or respect), force, devices, models, wait, dry_run"),
        answers: &[(200, "nothing; with wait the report, with dry_run the plan"), (400, "not understood, or no such device"),
            (503, "the server stops")];

    Get "/memory" both memory::all, "What is in memory and why: devices, models, places, leases, policies, last decisions",
        query: &[far::WorkerQuery::KEYS],
        answers: &[(200, "devices, models, places, leases, policies, decisions, last_seq")];
    Get "/memory/devices" both memory::devices, "Devices and how their memory is used",
        query: &[far::WorkerQuery::KEYS],
        answers: &[(200, "array of devices")];
    Get "/memory/models" both memory::models, "Models in memory",
        query: &[far::WorkerQuery::KEYS],
        answers: &[(200, "array of models")];
    Get "/memory/models/{weights_id}" both memory::model, "One model with the places of its layers",
        query: &[far::WorkerQuery::KEYS],
        answers: &[(200, "model, units"), (404, "no such model")];
    Patch "/memory/models/{weights_id}" both memory::set_policy, "Set how long a model stays",
        query: &[far::WorkerQuery::KEYS],
        body: Some("JSON object: policy (auto, keep, pin, eject_after, ttl:SECONDS, release_now)"),
        answers: &[(200, "the model"), (400, "no such policy"), (404, "no such model"), (409, "in use and to be released now")];
    Delete "/memory/models/{weights_id}" both memory::remove, "Drop a model from all devices and the main memory",
        query: &[memory::RemoveQuery::KEYS, far::WorkerQuery::KEYS],
        answers: &[(200, "dropped"), (202, "dropped when the prompts that use it have ended"), (404, "no such model"), (409, "pinned")];
    Post "/memory/plan" both memory::plan, "What a load or a request to free would do; nothing is changed",
        query: &[far::WorkerQuery::KEYS],
        body: Some("JSON object: as /free; or units or weights_id with devices, compute_device, virtual_vram_gb, donor_device, expert_mode_allocations, eject_models, text_encoder, required"),
        answers: &[(200, "the plan"), (400, "not understood"), (404, "no such model")];
    Get "/memory/events" both memory::events, "What the memory room did and decided, oldest first",
        query: &[memory::EventsQuery::KEYS, far::WorkerQuery::KEYS],
        answers: &[(200, "events, last_seq"), (400, "not a number")];
    Get "/memory/check" both memory::check, "Whether books and devices agree",
        query: &[far::WorkerQuery::KEYS],
        answers: &[(200, "consistent, problems")];

    Get "/history" both history::get, "Finished prompts, oldest first",
        query: &[history::HistoryQuery::KEYS],
        answers: &[(200, "prompt id to entry")];
    Get "/history/{prompt_id}" both history::get_one, "One finished prompt",
        answers: &[(200, "prompt id to entry, or an empty object")];
    Post "/history" both history::post, "Remove finished prompts: clear, delete",
        body: JSON_OBJECT, answers: &[(200, "done")];

    Get "/api/jobs" both jobs::list, "Queue and history as one list",
        query: &[jobs::JobsQuery::KEYS],
        answers: &[(200, "jobs, pagination"), (400, "error")];
    Get "/api/jobs/{job_id}" both jobs::get, "One job with its workflow and outputs",
        answers: &[(200, "job"), (404, "no such job")];
    Get "/api/jobs/{job_id}/events" both events_sse::get, "Events of a job as server-sent events, from the start or after Last-Event-ID",
        query: &[events_sse::StreamQuery::KEYS],
        answers: &[(200, "text/event-stream"), (404, "no such job")];
    Post "/api/jobs/{job_id}/cancel" both jobs::cancel, "Cancel a job, waiting or running",
        answers: &[(200, "id, cancelled"), (404, "no such job")];
    Post "/api/jobs/cancel" both jobs::cancel_many, "Cancel several jobs",
        body: Some("JSON object: job_ids"), answers: &[(200, "cancelled ids"), (400, "error")];

    Get "/object_info" both object_info::all, "All node classes",
        answers: &[(200, "class name to description")];
    Get "/object_info/{node_class}" both object_info::one, "One node class",
        answers: &[(200, "class name to description, or an empty object")];

    Post "/upload/image" both upload::image, "Store a file in the input, temp or output folder",
        body: Some("multipart/form-data: image, type, subfolder, overwrite"),
        answers: &[(200, "name, subfolder, type"), (400, "error"), (413, "too large"), (503, "too many uploads at once"),
            (507, "the disk is full")];
    Post "/upload/mask" both upload::mask, "Store a copy of a picture with the alpha of the uploaded one",
        body: Some("multipart/form-data: image, original_ref, type, subfolder, overwrite"),
        answers: &[(200, "name, subfolder, type"), (400, "error"), (403, "outside"), (404, "no such original"),
            (413, "too large"), (503, "too many at once, or not enough memory"), (507, "the disk is full")];
    Get "/view" both view::get, "A stored file, or a preview of it",
        query: &[view::ViewQuery::KEYS],
        answers: &[(200, "the file"), (206, "a range of it"), (304, "unchanged"), (400, "bad name"), (403, "outside"),
            (404, "no such file"), (413, "the picture takes too much memory"), (416, "range outside the file"),
            (503, "too many pictures at once, or not enough memory")];

    Get "/system_stats" both system::stats, "Versions, memory and devices",
        answers: &[(200, "system, devices")];
    Get "/features" both system::features, "What this server can do",
        answers: &[(200, "feature flags")];
    Get "/embeddings" both models::embeddings, "Names of embeddings",
        answers: &[(200, "array of names")];
    Get "/models" both models::types, "Types of model folders",
        answers: &[(200, "array of names")];
    Get "/models/{folder}" both models::list, "Files of one type",
        answers: &[(200, "array of names"), (404, "no such type")];
    Get "/view_metadata/{folder_name}" both models::metadata, "Metadata of a safetensors file",
        query: &[models::ModelFileQuery::KEYS],
        answers: &[(200, "metadata"), (404, "none")];
    Get "/experiment/models" both models::browse_types, "Types of model folders with their places",
        answers: &[(200, "array of name, folders")];
    Get "/experiment/models/{folder}" both models::browse, "Files of one type with sizes and times; null for files outside the folders that are linked to",
        answers: &[(200, "array of files"), (404, "no such type")];
    Get "/experiment/models/preview/{folder}/{path_index}/{filename:.*}" both models::preview, "Preview picture of a model",
        answers: &[(200, "image/webp"), (404, "none")];

    Get "/api/packs" both pack_host::list, "Python packs: their states, nodes and errors",
        answers: &[(200, "state of their process, Python, packs")];
    Get "/fresco/packs" both pack_host::list, "The same as /api/packs",
        answers: &[(200, "state of their process, Python, packs")];
    Post "/fresco/packs/restart" both pack_host::restart, "Start the process of the packs anew",
        answers: &[(200, "told to")];

    Get "/extensions" both packs::extensions, "Scripts of front-end extensions",
        answers: &[(200, "array of paths")];
    Get "/workflow_templates" both packs::workflow_templates, "Example workflows of packs",
        answers: &[(200, "pack to names")];
    Get "/i18n" both packs::i18n, "Translations of packs",
        answers: &[(200, "language to texts")];
    Get "/global_subgraphs" both packs::subgraphs, "Sub-graphs of packs",
        answers: &[(200, "id to description")];
    Get "/global_subgraphs/{id}" both packs::subgraph, "One sub-graph with its text",
        answers: &[(200, "description with data, or null")];

    Get "/users" both users::get, "Users, or whether there is data of the only one",
        answers: &[(200, "storage, users or migrated")];
    Post "/users" both users::post, "Add a user",
        body: Some("JSON object: username"), answers: &[(200, "user id"), (400, "error")];
    Get "/settings" both settings::get, "All settings of the user",
        answers: &[(200, "object"), (401, "unknown user")];
    Post "/settings" both settings::post, "Change some settings",
        body: JSON_OBJECT, answers: &[(200, "saved"), (401, "unknown user")];
    Get "/settings/{id}" both settings::get_one, "One setting",
        answers: &[(200, "value or null"), (401, "unknown user")];
    Post "/settings/{id}" both settings::post_one, "Change one setting",
        body: Some("any JSON value"), answers: &[(200, "saved"), (401, "unknown user")];
    Get "/userdata" both userdata::list, "Files of the user in a folder",
        query: &[userdata::ListQuery::KEYS],
        answers: &[(200, "array"), (400, "no folder named"), (403, "outside"), (404, "no such folder")];
    Get "/v2/userdata" both userdata::list_v2, "Files and folders of the user",
        query: &[userdata::FolderQuery::KEYS],
        answers: &[(200, "array"), (400, "outside or not a folder"), (403, "unknown user"), (404, "no such folder")];
    Get "/userdata/{file}" both userdata::get, "A file of the user",
        answers: &[(200, "the file"), (403, "outside"), (404, "no such file")];
    Post "/userdata/{file}" both userdata::post, "Store a file of the user",
        query: &[userdata::StoreQuery::KEYS],
        body: Some("the file"),
        answers: &[(200, "path or description"), (400, "bad name"), (403, "outside"), (409, "exists"),
            (413, "too large"), (503, "too many uploads at once"), (507, "the disk is full")];
    Delete "/userdata/{file}" both userdata::delete, "Delete a file of the user",
        answers: &[(204, "deleted"), (403, "outside"), (404, "no such file")];
    Post "/userdata/{file}/move/{dest}" both userdata::rename, "Move a file of the user",
        query: &[userdata::StoreQuery::KEYS],
        answers: &[(200, "path or description"), (403, "outside"), (404, "no such file"), (409, "exists")];

    Post "/fresco/workflow" both workflow::inspect, "What is in a file, and what is missing here to run it; nothing is stored",
        body: Some("a workflow or a prompt as JSON, or a PNG or WEBP that carries one"),
        answers: &[(200, "kind (ui or api), workflow, prompt, missing (nodes, models with choices, files), warnings"),
            (400, "not a workflow"), (413, "too large")];

    Post "/fresco/outputs/delete" both outputs::delete, "Delete files of the output, input or temp folder",
        body: Some("JSON object: files, an array of filename, subfolder, type"),
        answers: &[(200, "deleted (files), failed (file, reason)"), (400, "not understood; nothing was deleted")];
    Get "/fresco/models/{folder}" both models::describe, "What a model file is: its family, and what it holds beside the diffusion network",
        query: &[models::ModelFileQuery::KEYS],
        answers: &[(200, "family and parts; or family null and the reason"), (400, "no filename"), (404, "no such file")];
    Get "/fresco/queue" both queue::outline, "Whether the queue is paused, and the order of what waits",
        answers: &[(200, "paused, order (ids in the order in which they will run), held (ids that wait for a release), held_reasons (why, by id, for those that the program itself holds), waiting_reasons (what the workers lack, by id, for those that none of them can run)")];
    Post "/fresco/queue" both queue::change, "Pause the queue, hold, release and order waiting prompts; kept over restarts",
        body: Some("JSON object with one or more of: paused (a paused queue accepts prompts and starts none), order (ids that run first), hold, release (ids); ids that do not wait are passed over"),
        answers: &[(200, "paused, order, held, held_reasons, waiting_reasons as they are then"), (400, "not understood; nothing was changed"), (503, "could not be stored")];

    Get "/internal/logs" once internal::logs, "The log as text",
        answers: &[(200, "JSON string")];
    Get "/internal/logs/raw" once internal::raw_logs, "The log as entries",
        answers: &[(200, "entries, size")];
    Patch "/internal/logs/subscribe" once internal::subscribe, "Send new log entries to a socket, or stop",
        body: Some("JSON object: clientId, enabled"), answers: &[(200, "done")];
    Get "/internal/folder_paths" once internal::folder_paths, "Model folders with their places",
        answers: &[(200, "type to paths")];
    Get "/internal/files/{directory_type}" once internal::files, "Files directly in input, output or temp, newest first",
        answers: &[(200, "array of names"), (400, "no such folder")];

    Get "/health" both health::get, "Whether the server answers, and with ?ready=1 whether it takes work; needs no token",
        query: &[health::HealthQuery::KEYS],
        answers: &[(200, "status, version"), (503, "asked with ready, and about to end")];
    Get "/metrics" both metrics::get, "Counters in the Prometheus text form",
        answers: &[(200, "text")];
    Get "/openapi.json" both openapi::get, "This description",
        answers: &[(200, "OpenAPI 3.1 document")];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_twice() {
        for (i, a) in ROUTES.iter().enumerate() {
            assert!(a.path.starts_with('/') && !a.summary.is_empty() && !a.answers.is_empty());
            for b in &ROUTES[i + 1..] {
                assert!(a.verb != b.verb || a.path != b.path, "{}", a.path);
            }
        }
    }
}
