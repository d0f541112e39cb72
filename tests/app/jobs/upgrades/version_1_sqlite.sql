-- A jobs' database as the version before API keys made it: a finished job, one under way, and a picture that is kept.
BEGIN TRANSACTION;
CREATE TABLE application_versions (
    version_id TEXT NOT NULL PRIMARY KEY,
    version_name TEXT NOT NULL UNIQUE,
    version_timestamp INTEGER NOT NULL DEFAULT (strftime('%s','now') * 1000),
    created_at INTEGER NOT NULL DEFAULT (strftime('%s','now') * 1000)
, "application_name" TEXT DEFAULT NULL);
CREATE TABLE dbos_migrations (version INTEGER NOT NULL PRIMARY KEY);
INSERT INTO "dbos_migrations" VALUES(125);
CREATE TABLE heatlens_items (
	job_id TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	shard INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	input TEXT NOT NULL, 
	status TEXT NOT NULL, 
	event INTEGER, 
	attempts INTEGER NOT NULL, 
	sha256 TEXT, 
	size_bytes BIGINT NOT NULL, 
	artifact_bytes BIGINT NOT NULL, 
	label TEXT, 
	target INTEGER, 
	confidence FLOAT, 
	result JSON, 
	error JSON, 
	finished_at FLOAT, 
	PRIMARY KEY (job_id, number), 
	FOREIGN KEY(job_id) REFERENCES heatlens_jobs (id) ON DELETE CASCADE
);
INSERT INTO "heatlens_items" VALUES('11111111111111111111111111111111',0,0,'a.png','store:a','succeeded',1,0,'0000000000000000000000000000000000000000000000000000000000000000',10,0,'cat',2,0.5,'{"model": {"name": "small", "weights_sha256": null, "weights": "random"}, "method": {"name": "gradcam", "parameters": {}, "class_specific": true, "fails_randomisation": false}, "layers": ["second"], "image": {"width": 32, "height": 24, "seen": {"left": 0.0, "top": 0.0, "right": 32.0, "bottom": 24.0}}, "predictions": [{"index": 2, "label": "cat", "probability": 0.5}], "explanations": [{"target": {"index": 2, "label": "cat", "score": 1.5, "probability": 0.5}, "versus": null, "map": {"min": 0.0, "max": 1.0, "mean": 0.5, "width": 7, "height": 7, "no_positive_evidence": false, "normalisation": "max", "completeness_gap": null}, "faithfulness": null, "stability": null, "artifacts": {"overlay": "000000.overlay.jpg", "map": "000000.map.png"}}], "artifacts": {}}',NULL,1.79605188129137539865e+09);
INSERT INTO "heatlens_items" VALUES('11111111111111111111111111111111',1,0,'b.png','store:b','failed',2,0,NULL,10,0,NULL,NULL,NULL,NULL,'{"code": "corrupt_image", "detail": "It is damaged."}',1.79605188129137539865e+09);
INSERT INTO "heatlens_items" VALUES('22222222222222222222222222222222',0,0,'0','store:22222222222222222222222222222222/inputs/000/000000','succeeded',1,0,'0000000000000000000000000000000000000000000000000000000000000000',5,0,'cat',2,0.5,'{"model": {"name": "small", "weights_sha256": null, "weights": "random"}, "method": {"name": "gradcam", "parameters": {}, "class_specific": true, "fails_randomisation": false}, "layers": ["second"], "image": {"width": 32, "height": 24, "seen": {"left": 0.0, "top": 0.0, "right": 32.0, "bottom": 24.0}}, "predictions": [{"index": 2, "label": "cat", "probability": 0.5}], "explanations": [{"target": {"index": 2, "label": "cat", "score": 1.5, "probability": 0.5}, "versus": null, "map": {"min": 0.0, "max": 1.0, "mean": 0.5, "width": 7, "height": 7, "no_positive_evidence": false, "normalisation": "max", "completeness_gap": null}, "faithfulness": null, "stability": null, "artifacts": {"overlay": "000000.overlay.jpg", "map": "000000.map.png"}}], "artifacts": {}}',NULL,1.79605188133060741429e+09);
INSERT INTO "heatlens_items" VALUES('22222222222222222222222222222222',1,0,'1','store:22222222222222222222222222222222/inputs/000/000001','waiting',NULL,0,NULL,5,0,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "heatlens_items" VALUES('22222222222222222222222222222222',2,1,'2','store:22222222222222222222222222222222/inputs/000/000002','waiting',NULL,0,NULL,5,0,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "heatlens_items" VALUES('22222222222222222222222222222222',3,1,'3','store:22222222222222222222222222222222/inputs/000/000003','waiting',NULL,0,NULL,5,0,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE heatlens_jobs (
	id TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	name TEXT NOT NULL, 
	status TEXT NOT NULL, 
	options JSON NOT NULL, 
	webhook TEXT, 
	waiting_for TEXT, 
	total INTEGER NOT NULL, 
	done INTEGER NOT NULL, 
	failed INTEGER NOT NULL, 
	events INTEGER NOT NULL, 
	shards INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	created_at FLOAT NOT NULL, 
	started_at FLOAT, 
	finished_at FLOAT, 
	deleted_at FLOAT, 
	idempotency_key TEXT, 
	payload_sha256 TEXT, 
	PRIMARY KEY (id)
);
INSERT INTO "heatlens_jobs" VALUES('11111111111111111111111111111111','127.0.0.1','finished','completed_with_errors','{"method": "gradcam"}',NULL,NULL,2,2,1,2,1,0,20,1.7960518812545874118e+09,NULL,1.79605188129137539865e+09,NULL,NULL,'');
INSERT INTO "heatlens_jobs" VALUES('22222222222222222222222222222222','127.0.0.1','under way','queued','{"method": "gradcam"}',NULL,NULL,4,1,0,1,2,0,20,1.79605188130934953689e+09,NULL,NULL,NULL,NULL,'');
CREATE TABLE heatlens_kept (
	id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	image_id TEXT, 
	job_id TEXT, 
	facts JSON NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "heatlens_kept" VALUES('kkkkkkkkkkkk','image','127.0.0.1',NULL,NULL,'{"sha256": "0000000000000000000000000000000000000000000000000000000000000000"}',5,1800000000.0,4000000000.0);
CREATE TABLE heatlens_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "heatlens_version" VALUES(1);
CREATE TABLE notifications (
    message_uuid TEXT NOT NULL DEFAULT (hex(randomblob(16))) PRIMARY KEY,
    destination_uuid TEXT NOT NULL,
    topic TEXT,
    message TEXT NOT NULL,
    created_at_epoch_ms INTEGER NOT NULL DEFAULT (strftime('%s','now') * 1000), "serialization" TEXT DEFAULT NULL, "consumed" BOOLEAN NOT NULL DEFAULT FALSE, consumed_by_function_id INTEGER,
    FOREIGN KEY (destination_uuid) REFERENCES workflow_status(workflow_uuid) 
        ON UPDATE CASCADE ON DELETE CASCADE
);
CREATE TABLE "operation_outputs" (
    workflow_uuid TEXT NOT NULL,
    function_id INTEGER NOT NULL,
    function_name TEXT NOT NULL DEFAULT '',
    output TEXT,
    error TEXT,
    child_workflow_id TEXT,
    started_at_epoch_ms INTEGER,
    completed_at_epoch_ms INTEGER,
    serialization TEXT,
    application_name TEXT DEFAULT NULL,
    retention_timestamp INTEGER NOT NULL DEFAULT (strftime('%s','now') * 1000),
    PRIMARY KEY (workflow_uuid, function_id)
);
CREATE TABLE queues (
    queue_id TEXT PRIMARY KEY DEFAULT (hex(randomblob(16))),
    name TEXT NOT NULL UNIQUE,
    concurrency INTEGER,
    worker_concurrency INTEGER,
    rate_limit_max INTEGER,
    rate_limit_period_sec REAL,
    priority_enabled BOOLEAN NOT NULL DEFAULT FALSE,
    partition_queue BOOLEAN NOT NULL DEFAULT FALSE,
    polling_interval_sec REAL NOT NULL DEFAULT 1.0,
    created_at INTEGER NOT NULL DEFAULT (strftime('%s','now') * 1000),
    updated_at INTEGER NOT NULL DEFAULT (strftime('%s','now') * 1000)
, "application_name" TEXT DEFAULT NULL, "partition_concurrency" INTEGER DEFAULT NULL, "partition_worker_concurrency" INTEGER DEFAULT NULL, "partition_rate_limit_max" INTEGER DEFAULT NULL, "partition_rate_limit_period_sec" REAL DEFAULT NULL);
CREATE TABLE streams (
    workflow_uuid TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    "offset" INTEGER NOT NULL, function_id INTEGER NOT NULL DEFAULT 0, "serialization" TEXT DEFAULT NULL,
    PRIMARY KEY (workflow_uuid, key, "offset"),
    FOREIGN KEY (workflow_uuid) REFERENCES workflow_status(workflow_uuid) 
        ON UPDATE CASCADE ON DELETE CASCADE
);
CREATE TABLE workflow_events (
    workflow_uuid TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL, "serialization" TEXT DEFAULT NULL,
    PRIMARY KEY (workflow_uuid, key),
    FOREIGN KEY (workflow_uuid) REFERENCES workflow_status(workflow_uuid) 
        ON UPDATE CASCADE ON DELETE CASCADE
);
CREATE TABLE workflow_events_history (
    workflow_uuid TEXT NOT NULL,
    function_id INTEGER NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL, "serialization" TEXT DEFAULT NULL,
    PRIMARY KEY (workflow_uuid, function_id, key),
    FOREIGN KEY (workflow_uuid) REFERENCES workflow_status(workflow_uuid)
        ON UPDATE CASCADE ON DELETE CASCADE
);
CREATE TABLE workflow_input (
    workflow_uuid TEXT NOT NULL PRIMARY KEY,
    inputs TEXT,
    retention_timestamp INTEGER NOT NULL DEFAULT (strftime('%s','now') * 1000)
);
INSERT INTO "workflow_input" VALUES('11111111111111111111111111111111/0','gASVPgAAAAAAAAB9lCiMBGFyZ3OUjCAxMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMZRLAIaUjAZrd2FyZ3OUfZR1Lg==',1796051881000);
INSERT INTO "workflow_input" VALUES('22222222222222222222222222222222/0','gASVPgAAAAAAAAB9lCiMBGFyZ3OUjCAyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMpRLAIaUjAZrd2FyZ3OUfZR1Lg==',1796051881000);
INSERT INTO "workflow_input" VALUES('22222222222222222222222222222222/1','gASVPgAAAAAAAAB9lCiMBGFyZ3OUjCAyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMpRLAYaUjAZrd2FyZ3OUfZR1Lg==',1796051881000);
CREATE TABLE workflow_output (
    workflow_uuid TEXT NOT NULL PRIMARY KEY,
    output TEXT,
    error TEXT,
    retention_timestamp INTEGER NOT NULL DEFAULT (strftime('%s','now') * 1000)
);
CREATE TABLE workflow_schedules (
    schedule_id TEXT PRIMARY KEY,
    schedule_name TEXT NOT NULL UNIQUE,
    workflow_name TEXT NOT NULL,
    workflow_class_name TEXT,
    schedule TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'ACTIVE',
    context TEXT NOT NULL
, "last_fired_at" TEXT DEFAULT NULL, "automatic_backfill" BOOLEAN NOT NULL DEFAULT FALSE, "cron_timezone" TEXT DEFAULT NULL, "queue_name" TEXT DEFAULT NULL, "application_name" TEXT DEFAULT NULL);
CREATE TABLE workflow_status (
    workflow_uuid TEXT PRIMARY KEY,
    status TEXT,
    name TEXT,
    authenticated_user TEXT,
    assumed_role TEXT,
    authenticated_roles TEXT,
    request TEXT,
    output TEXT,
    error TEXT,
    executor_id TEXT,
    created_at INTEGER NOT NULL DEFAULT (strftime('%s','now') * 1000),
    updated_at INTEGER NOT NULL DEFAULT (strftime('%s','now') * 1000),
    application_version TEXT,
    application_id TEXT,
    class_name TEXT DEFAULT NULL,
    config_name TEXT DEFAULT NULL,
    recovery_attempts INTEGER DEFAULT 0,
    queue_name TEXT,
    workflow_timeout_ms INTEGER,
    workflow_deadline_epoch_ms INTEGER,
    inputs TEXT,
    started_at_epoch_ms INTEGER,
    deduplication_id TEXT,
    priority INTEGER NOT NULL DEFAULT 0
, queue_partition_key TEXT, forked_from TEXT, "owner_xid" TEXT DEFAULT NULL, "parent_workflow_id" TEXT DEFAULT NULL, "serialization" TEXT DEFAULT NULL, "delay_until_epoch_ms" BIGINT DEFAULT NULL, "was_forked_from" BOOLEAN NOT NULL DEFAULT FALSE, "rate_limited" BOOLEAN NOT NULL DEFAULT FALSE, "completed_at" BIGINT, "attributes" TEXT, "schedule_name" TEXT, "debounce_deadline_epoch_ms" BIGINT DEFAULT NULL, "is_debounced" BOOLEAN NOT NULL DEFAULT FALSE, "application_name" TEXT DEFAULT NULL, "creator_xid" TEXT DEFAULT NULL);
INSERT INTO "workflow_status" VALUES('11111111111111111111111111111111/0','ENQUEUED','explain_shard',NULL,NULL,NULL,NULL,NULL,NULL,NULL,1796051881000,1796051881000,'1',NULL,NULL,NULL,0,'heatlens-shards',NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,'py_pickle',NULL,0,0,NULL,'null',NULL,NULL,0,'heatlens','4eb10d14-4c61-4a73-be3b-914c86c80ac6');
INSERT INTO "workflow_status" VALUES('22222222222222222222222222222222/0','ENQUEUED','explain_shard',NULL,NULL,NULL,NULL,NULL,NULL,NULL,1796051881000,1796051881000,'1',NULL,NULL,NULL,0,'heatlens-shards',NULL,NULL,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,'py_pickle',NULL,0,0,NULL,'null',NULL,NULL,0,'heatlens','a5f93310-ab9a-44d0-92ee-4f93ac3647be');
INSERT INTO "workflow_status" VALUES('22222222222222222222222222222222/1','ENQUEUED','explain_shard',NULL,NULL,NULL,NULL,NULL,NULL,NULL,1796051881000,1796051881000,'1',NULL,NULL,NULL,0,'heatlens-shards',NULL,NULL,NULL,NULL,NULL,2,NULL,NULL,NULL,NULL,'py_pickle',NULL,0,0,NULL,'null',NULL,NULL,0,'heatlens','518ce864-56ac-4583-9793-4686c1eba256');
CREATE INDEX heatlens_jobs_by_age ON heatlens_jobs (created_at, id);
CREATE UNIQUE INDEX heatlens_jobs_by_key ON heatlens_jobs (owner, idempotency_key);
CREATE INDEX heatlens_kept_by_expiry ON heatlens_kept (expires_at);
CREATE INDEX heatlens_kept_by_owner ON heatlens_kept (owner, size_bytes);
CREATE INDEX heatlens_kept_by_image ON heatlens_kept (image_id);
CREATE INDEX heatlens_items_by_event ON heatlens_items (job_id, event);
CREATE INDEX heatlens_items_by_shard ON heatlens_items (job_id, shard, status);
CREATE INDEX workflow_status_created_at_index ON workflow_status (created_at);
CREATE INDEX idx_workflow_topic ON notifications (destination_uuid, topic);
CREATE INDEX "idx_workflow_status_delayed" ON "workflow_status" ("delay_until_epoch_ms") WHERE status = 'DELAYED';
CREATE INDEX "idx_workflow_status_forked_from" ON "workflow_status" ("forked_from") WHERE "forked_from" IS NOT NULL;
CREATE INDEX "idx_workflow_status_parent_workflow_id" ON "workflow_status" ("parent_workflow_id") WHERE "parent_workflow_id" IS NOT NULL;
CREATE UNIQUE INDEX "uq_workflow_status_dedup_id" ON "workflow_status" ("queue_name", "deduplication_id") WHERE "deduplication_id" IS NOT NULL;
CREATE INDEX "idx_workflow_status_pending" ON "workflow_status" ("created_at") WHERE "status" = 'PENDING';
CREATE INDEX "idx_workflow_status_failed" ON "workflow_status" ("status", "created_at") WHERE "status" IN ('ERROR', 'CANCELLED', 'MAX_RECOVERY_ATTEMPTS_EXCEEDED');
CREATE INDEX "idx_workflow_status_rate_limited" ON "workflow_status" ("queue_name", "started_at_epoch_ms") WHERE "rate_limited" = TRUE;
CREATE INDEX "idx_workflow_status_completed_at" ON "workflow_status" ("completed_at") WHERE "completed_at" IS NOT NULL;
CREATE INDEX "idx_workflow_status_started_at" ON "workflow_status" ("started_at_epoch_ms") WHERE "started_at_epoch_ms" IS NOT NULL;
CREATE INDEX "idx_workflow_status_schedule_name" ON "workflow_status" ("schedule_name") WHERE "schedule_name" IS NOT NULL;
CREATE UNIQUE INDEX "uq_application_versions_owner_version"
    ON application_versions ("application_name", "version_name")
    WHERE "application_name" IS NOT NULL;
CREATE UNIQUE INDEX "uq_application_versions_unclaimed_version"
    ON application_versions ("version_name")
    WHERE "application_name" IS NULL;
CREATE INDEX idx_workflow_input_retention
    ON workflow_input (retention_timestamp);
CREATE INDEX idx_workflow_output_retention
    ON workflow_output (retention_timestamp);
CREATE INDEX idx_operation_outputs_retention
    ON operation_outputs (retention_timestamp);
CREATE INDEX "idx_workflow_status_in_flight_v2" ON "workflow_status" ("queue_name", "status", "priority", "created_at", "application_name") WHERE "status" IN ('ENQUEUED', 'PENDING');
CREATE INDEX "idx_workflow_status_partition_dequeue_v3" ON "workflow_status" ("queue_name", "status", "queue_partition_key", "priority", "created_at", "workflow_uuid", "application_name") WHERE "status" IN ('ENQUEUED', 'PENDING') AND "queue_partition_key" IS NOT NULL;
CREATE INDEX "idx_operation_outputs_completed_at_function_name_v2" ON "operation_outputs" ("completed_at_epoch_ms", "function_name", "application_name");
CREATE INDEX "idx_workflow_status_deadline" ON "workflow_status" ("workflow_deadline_epoch_ms") WHERE "status" IN ('ENQUEUED', 'PENDING', 'DELAYED') AND "workflow_deadline_epoch_ms" IS NOT NULL;
CREATE INDEX "idx_application_versions_timestamp" ON "application_versions" ("version_timestamp" DESC);
CREATE INDEX "idx_application_versions_owner_timestamp" ON "application_versions" ("application_name", "version_timestamp" DESC);
COMMIT;
