-- A database of schema version 2, which added held jobs and places. Never edit: later versions must open it.
PRAGMA application_id = 1179800387;
PRAGMA user_version = 2;
CREATE TABLE bodies (
    seq INTEGER PRIMARY KEY,
    prompt TEXT NOT NULL,
    extra_data TEXT NOT NULL,
    outputs TEXT NOT NULL,
    exact TEXT
);
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY REFERENCES bodies (seq),
    number,
    prompt_id TEXT NOT NULL,
    create_time INTEGER,
    workflow_id TEXT,
    attempt INTEGER NOT NULL DEFAULT 0,
    lease_owner TEXT,
    deadline INTEGER,
    held INTEGER NOT NULL DEFAULT 0,
    place INTEGER
);
CREATE TABLE history (
    pos INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL REFERENCES bodies (seq),
    number,
    prompt_id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    create_time INTEGER,
    start_time INTEGER,
    end_time INTEGER,
    workflow_id TEXT,
    outputs_count INTEGER NOT NULL,
    previewable_count INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    preview_output TEXT,
    error TEXT
);
CREATE TABLE results (
    seq INTEGER PRIMARY KEY REFERENCES bodies (seq),
    status_str TEXT NOT NULL,
    completed INTEGER NOT NULL,
    outputs TEXT NOT NULL,
    meta TEXT NOT NULL,
    messages TEXT NOT NULL
);
CREATE TABLE kv (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO bodies VALUES
    (1, '{"9":{"class_type":"A","inputs":{}}}', '{"create_time":1000}', '["9"]', NULL),
    (2, '{"9":{"class_type":"A","inputs":{}}}', '{"create_time":2000}', '["9"]', NULL),
    (3, '{"9":{"class_type":"A","inputs":{}}}', '{"create_time":3000}', '["9"]', NULL),
    (4, '{"9":{"class_type":"A","inputs":{}}}', '{"create_time":4000}', '["9"]', NULL);
INSERT INTO jobs VALUES
    (1, 7, 'b', 1000, NULL, 0, NULL, NULL, 0, 1),
    (2, 7, 'a', 2000, NULL, 0, NULL, NULL, 0, NULL),
    (3, 7, 'c', 3000, NULL, 0, NULL, NULL, 1, 0),
    (4, 8, 'd', 4000, NULL, 0, NULL, NULL, 0, NULL);
INSERT INTO kv VALUES ('queue.paused', '1');
