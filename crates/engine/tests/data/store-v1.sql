-- A database of schema version 1, as Fresco 0.1 writes it. Never edit: later versions must open it.
PRAGMA application_id = 1179800387;
PRAGMA user_version = 1;
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
    deadline INTEGER
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
    (4, '{"9":{"class_type":"A","inputs":{}}}', '{"create_time":4000,"client_id":"c"}', '["9"]', NULL),
    (5, '{"1":{"class_type":"A","inputs":{"x":null}}}', '{"create_time":5000}', '["1"]', '[{"1":{"class_type":"A","inputs":{"x":NaN}}},{"create_time":5000}]'),
    (6, '{"9":{"class_type":"A","inputs":{}}}', '{"create_time":6000}', '["9"]', NULL);
INSERT INTO jobs VALUES
    (2, 2, 'was-running', 2000, NULL, 1, '4711-1700000000000', NULL),
    (3, 5, 'exhausted', 3000, '"w"', 3, '4711-1700000000000', NULL),
    (4, 3, 'plain', 4000, NULL, 0, NULL, NULL),
    (5, -4, 'front', 5000, NULL, 0, NULL, NULL),
    (6, 7.5, 'float', 6000, NULL, 0, NULL, NULL);
INSERT INTO history VALUES
    (1, 1, 1, 'done', 'completed', 1000, 1100, 1200, '"w"', 0, 0, 1, NULL, NULL);
INSERT INTO results VALUES
    (1, 'success', 1, '{"9":{"images":[]}}', '{}', '[["execution_start",{"prompt_id":"done","timestamp":1100}]]');
INSERT INTO kv VALUES ('colour', 'blue');
