-- A jobs' database as the version before API keys made it: a finished job, one under way, and a picture that is kept.
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA dbos;
CREATE FUNCTION dbos.enqueue_workflow(workflow_name text, queue_name text, positional_args json[] DEFAULT ARRAY[]::json[], named_args json DEFAULT '{}'::json, class_name text DEFAULT NULL::text, config_name text DEFAULT NULL::text, workflow_id text DEFAULT NULL::text, app_version text DEFAULT NULL::text, timeout_ms bigint DEFAULT NULL::bigint, deadline_epoch_ms bigint DEFAULT NULL::bigint, deduplication_id text DEFAULT NULL::text, priority integer DEFAULT NULL::integer, queue_partition_key text DEFAULT NULL::text, authenticated_user text DEFAULT NULL::text, authenticated_roles text DEFAULT NULL::text, delay_until_epoch_ms bigint DEFAULT NULL::bigint, application_name text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_workflow_id TEXT;
    v_serialized_inputs TEXT;
    v_owner_xid TEXT;
    v_now BIGINT;
    v_recovery_attempts INT4 := 0;
    v_priority INT4;
    v_status TEXT;
BEGIN
    -- Validate required parameters
    IF workflow_name IS NULL OR workflow_name = '' THEN
        RAISE EXCEPTION 'Workflow name cannot be null or empty';
    END IF;
    IF queue_name IS NULL OR queue_name = '' THEN
        RAISE EXCEPTION 'Queue name cannot be null or empty';
    END IF;
    IF named_args IS NOT NULL AND jsonb_typeof(named_args::jsonb) != 'object' THEN
        RAISE EXCEPTION 'Named args must be a JSON object';
    END IF;
    IF workflow_id IS NOT NULL AND workflow_id = '' THEN
        RAISE EXCEPTION 'Workflow ID cannot be an empty string if provided.';
    END IF;
    IF delay_until_epoch_ms IS NOT NULL AND delay_until_epoch_ms < 0 THEN
        RAISE EXCEPTION 'delay_until_epoch_ms must be >= 0';
    END IF;
    v_workflow_id := COALESCE(workflow_id, gen_random_uuid()::TEXT);
    v_owner_xid := gen_random_uuid()::TEXT;
    v_priority := COALESCE(priority, 0);
    v_serialized_inputs := json_build_object(
        'positionalArgs', positional_args,
        'namedArgs', named_args
    )::TEXT;
    v_now := EXTRACT(epoch FROM now()) * 1000;
    v_status := CASE WHEN delay_until_epoch_ms IS NULL THEN 'ENQUEUED' ELSE 'DELAYED' END;
    INSERT INTO "dbos".workflow_status (
        workflow_uuid, status,
        name, class_name, config_name,
        queue_name, deduplication_id, priority, queue_partition_key,
        application_version,
        created_at, updated_at, recovery_attempts,
        workflow_timeout_ms, workflow_deadline_epoch_ms,
        parent_workflow_id, owner_xid, serialization,
        authenticated_user, authenticated_roles,
        delay_until_epoch_ms, application_name
    ) VALUES (
        v_workflow_id, v_status,
        workflow_name, class_name, config_name,
        queue_name, deduplication_id, v_priority, queue_partition_key,
        app_version,
        v_now, v_now, v_recovery_attempts,
        timeout_ms, deadline_epoch_ms,
        NULL, v_owner_xid, 'portable_json',
        authenticated_user, authenticated_roles,
        delay_until_epoch_ms, application_name
    )
    ON CONFLICT (workflow_uuid)
    DO UPDATE SET
        updated_at = EXCLUDED.updated_at;
    INSERT INTO "dbos".workflow_input (
        workflow_uuid, inputs, retention_timestamp
    ) VALUES (
        v_workflow_id, v_serialized_inputs, v_now
    )
    ON CONFLICT (workflow_uuid) DO NOTHING;
    RETURN v_workflow_id;
EXCEPTION
    WHEN unique_violation THEN
        RAISE EXCEPTION 'DBOS queue duplicated'
            USING DETAIL = format('Workflow %s with queue %s and deduplication ID %s already exists', v_workflow_id, queue_name, deduplication_id),
                ERRCODE = 'unique_violation';
END;
$$;
CREATE FUNCTION dbos.notifications_function() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    payload text := NEW.destination_uuid || '::' || NEW.topic;
BEGIN
    PERFORM pg_notify('dbos_notifications_channel', payload);
    RETURN NEW;
END;
$$;
CREATE FUNCTION dbos.send_message(destination_id text, message json, topic text DEFAULT NULL::text, message_id text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_topic TEXT := COALESCE(topic, '__null__topic__');
    v_message_id TEXT := COALESCE(message_id, gen_random_uuid()::TEXT);
BEGIN
    INSERT INTO "dbos".notifications (
        destination_uuid, topic, message, message_uuid, serialization
    ) VALUES (
        destination_id, v_topic, message, v_message_id, 'portable_json'
    )
    ON CONFLICT (message_uuid) DO NOTHING;
EXCEPTION
    WHEN foreign_key_violation THEN
        RAISE EXCEPTION 'DBOS non-existent workflow'
            USING DETAIL = format('Destination workflow %s does not exist', destination_id),
                ERRCODE = 'foreign_key_violation';
END;
$$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE dbos.application_versions (
    version_id text NOT NULL,
    version_name text NOT NULL,
    version_timestamp bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    created_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    application_name text
);
CREATE TABLE dbos.dbos_migrations (
    version bigint NOT NULL
);
CREATE TABLE dbos.event_dispatch_kv (
    service_name text NOT NULL,
    workflow_fn_name text NOT NULL,
    key text NOT NULL,
    value text,
    update_seq numeric(38,0),
    update_time numeric(38,15)
);
CREATE TABLE dbos.notifications (
    message_uuid text DEFAULT gen_random_uuid() NOT NULL,
    destination_uuid text NOT NULL,
    topic text,
    message text NOT NULL,
    created_at_epoch_ms bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    serialization text,
    consumed boolean DEFAULT false NOT NULL,
    consumed_by_function_id integer
);
CREATE TABLE dbos.operation_outputs (
    workflow_uuid text NOT NULL,
    function_id integer NOT NULL,
    function_name text DEFAULT ''::text NOT NULL,
    output text,
    error text,
    child_workflow_id text,
    started_at_epoch_ms bigint,
    completed_at_epoch_ms bigint,
    serialization text,
    application_name text,
    retention_timestamp bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL
);
CREATE TABLE dbos.queues (
    queue_id text DEFAULT (gen_random_uuid())::text NOT NULL,
    name text NOT NULL,
    concurrency integer,
    worker_concurrency integer,
    rate_limit_max integer,
    rate_limit_period_sec double precision,
    priority_enabled boolean DEFAULT false NOT NULL,
    partition_queue boolean DEFAULT false NOT NULL,
    polling_interval_sec double precision DEFAULT 1.0 NOT NULL,
    created_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    updated_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    application_name text,
    partition_concurrency integer,
    partition_worker_concurrency integer,
    partition_rate_limit_max integer,
    partition_rate_limit_period_sec double precision
);
CREATE TABLE dbos.streams (
    workflow_uuid text NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    "offset" integer NOT NULL,
    function_id integer DEFAULT 0 NOT NULL,
    serialization text
);
CREATE TABLE dbos.workflow_events (
    workflow_uuid text NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    serialization text
);
CREATE TABLE dbos.workflow_events_history (
    workflow_uuid text NOT NULL,
    function_id integer NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    serialization text
);
CREATE TABLE dbos.workflow_input (
    workflow_uuid text NOT NULL,
    inputs text,
    retention_timestamp bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL
);
CREATE TABLE dbos.workflow_output (
    workflow_uuid text NOT NULL,
    output text,
    error text,
    retention_timestamp bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL
);
CREATE TABLE dbos.workflow_schedules (
    schedule_id text NOT NULL,
    schedule_name text NOT NULL,
    workflow_name text NOT NULL,
    workflow_class_name text,
    schedule text NOT NULL,
    status text DEFAULT 'ACTIVE'::text NOT NULL,
    context text NOT NULL,
    last_fired_at text,
    automatic_backfill boolean DEFAULT false NOT NULL,
    cron_timezone text,
    queue_name text,
    application_name text
);
CREATE TABLE dbos.workflow_status (
    workflow_uuid text NOT NULL,
    status text,
    name text,
    authenticated_user text,
    assumed_role text,
    authenticated_roles text,
    request text,
    output text,
    error text,
    executor_id text,
    created_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    updated_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    application_version text,
    application_id text,
    class_name character varying(255) DEFAULT NULL::character varying,
    config_name character varying(255) DEFAULT NULL::character varying,
    recovery_attempts bigint DEFAULT 0,
    queue_name text,
    workflow_timeout_ms bigint,
    workflow_deadline_epoch_ms bigint,
    inputs text,
    started_at_epoch_ms bigint,
    deduplication_id text,
    priority integer DEFAULT 0 NOT NULL,
    queue_partition_key text,
    forked_from text,
    owner_xid text,
    parent_workflow_id text,
    serialization text,
    delay_until_epoch_ms bigint,
    was_forked_from boolean DEFAULT false NOT NULL,
    rate_limited boolean DEFAULT false NOT NULL,
    completed_at bigint,
    attributes jsonb,
    schedule_name text,
    debounce_deadline_epoch_ms bigint,
    is_debounced boolean DEFAULT false NOT NULL,
    application_name text,
    creator_xid text
);
CREATE TABLE public.heatlens_items (
    job_id text NOT NULL,
    number integer NOT NULL,
    shard integer NOT NULL,
    name text NOT NULL,
    input text NOT NULL,
    status text NOT NULL,
    event integer,
    attempts integer NOT NULL,
    sha256 text,
    size_bytes bigint NOT NULL,
    artifact_bytes bigint NOT NULL,
    label text,
    target integer,
    confidence double precision,
    result json,
    error json,
    finished_at double precision
);
CREATE TABLE public.heatlens_jobs (
    id text NOT NULL,
    owner text NOT NULL,
    name text NOT NULL,
    status text NOT NULL,
    options json NOT NULL,
    webhook text,
    waiting_for text,
    total integer NOT NULL,
    done integer NOT NULL,
    failed integer NOT NULL,
    events integer NOT NULL,
    shards integer NOT NULL,
    attempt integer NOT NULL,
    size_bytes bigint NOT NULL,
    created_at double precision NOT NULL,
    started_at double precision,
    finished_at double precision,
    deleted_at double precision,
    idempotency_key text,
    payload_sha256 text
);
CREATE TABLE public.heatlens_kept (
    id text NOT NULL,
    kind text NOT NULL,
    owner text NOT NULL,
    image_id text,
    job_id text,
    facts json NOT NULL,
    size_bytes bigint NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision NOT NULL
);
CREATE TABLE public.heatlens_version (
    version integer NOT NULL
);
CREATE SEQUENCE public.heatlens_version_version_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.heatlens_version_version_seq OWNED BY public.heatlens_version.version;
ALTER TABLE ONLY public.heatlens_version ALTER COLUMN version SET DEFAULT nextval('public.heatlens_version_version_seq'::regclass);
INSERT INTO dbos.dbos_migrations VALUES (125);
INSERT INTO dbos.workflow_input VALUES ('11111111111111111111111111111111/0', 'gASVPgAAAAAAAAB9lCiMBGFyZ3OUjCAxMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMZRLAIaUjAZrd2FyZ3OUfZR1Lg==', 1796051886758);
INSERT INTO dbos.workflow_input VALUES ('22222222222222222222222222222222/0', 'gASVPgAAAAAAAAB9lCiMBGFyZ3OUjCAyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMpRLAIaUjAZrd2FyZ3OUfZR1Lg==', 1796051886914);
INSERT INTO dbos.workflow_input VALUES ('22222222222222222222222222222222/1', 'gASVPgAAAAAAAAB9lCiMBGFyZ3OUjCAyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMpRLAYaUjAZrd2FyZ3OUfZR1Lg==', 1796051886914);
INSERT INTO dbos.workflow_status VALUES ('11111111111111111111111111111111/0', 'ENQUEUED', 'explain_shard', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1796051886758, 1796051886758, '1', NULL, NULL, NULL, 0, 'heatlens-shards', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, 'py_pickle', NULL, false, false, NULL, 'null', NULL, NULL, false, 'heatlens', '89aa4b04-a633-4acb-9c80-5dd2e3894e23');
INSERT INTO dbos.workflow_status VALUES ('22222222222222222222222222222222/0', 'ENQUEUED', 'explain_shard', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1796051886914, 1796051886914, '1', NULL, NULL, NULL, 0, 'heatlens-shards', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, 'py_pickle', NULL, false, false, NULL, 'null', NULL, NULL, false, 'heatlens', '114fa905-5479-44b9-9554-044cf0e442b0');
INSERT INTO dbos.workflow_status VALUES ('22222222222222222222222222222222/1', 'ENQUEUED', 'explain_shard', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1796051886914, 1796051886914, '1', NULL, NULL, NULL, 0, 'heatlens-shards', NULL, NULL, NULL, NULL, NULL, 2, NULL, NULL, NULL, NULL, 'py_pickle', NULL, false, false, NULL, 'null', NULL, NULL, false, 'heatlens', '0248068e-7d32-482e-a4b5-372b718c3cfd');
INSERT INTO public.heatlens_items VALUES ('11111111111111111111111111111111', 0, 0, 'a.png', 'store:a', 'succeeded', 1, 0, '0000000000000000000000000000000000000000000000000000000000000000', 10, 0, 'cat', 2, 0.5, '{"model": {"name": "small", "weights_sha256": null, "weights": "random"}, "method": {"name": "gradcam", "parameters": {}, "class_specific": true, "fails_randomisation": false}, "layers": ["second"], "image": {"width": 32, "height": 24, "seen": {"left": 0.0, "top": 0.0, "right": 32.0, "bottom": 24.0}}, "predictions": [{"index": 2, "label": "cat", "probability": 0.5}], "explanations": [{"target": {"index": 2, "label": "cat", "score": 1.5, "probability": 0.5}, "versus": null, "map": {"min": 0.0, "max": 1.0, "mean": 0.5, "width": 7, "height": 7, "no_positive_evidence": false, "normalisation": "max", "completeness_gap": null}, "faithfulness": null, "stability": null, "artifacts": {"overlay": "000000.overlay.jpg", "map": "000000.map.png"}}], "artifacts": {}}', NULL, 1796051886.8599744);
INSERT INTO public.heatlens_items VALUES ('11111111111111111111111111111111', 1, 0, 'b.png', 'store:b', 'failed', 2, 0, NULL, 10, 0, NULL, NULL, NULL, NULL, '{"code": "corrupt_image", "detail": "It is damaged."}', 1796051886.8599744);
INSERT INTO public.heatlens_items VALUES ('22222222222222222222222222222222', 1, 0, '1', 'store:22222222222222222222222222222222/inputs/000/000001', 'waiting', NULL, 0, NULL, 5, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.heatlens_items VALUES ('22222222222222222222222222222222', 2, 1, '2', 'store:22222222222222222222222222222222/inputs/000/000002', 'waiting', NULL, 0, NULL, 5, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.heatlens_items VALUES ('22222222222222222222222222222222', 3, 1, '3', 'store:22222222222222222222222222222222/inputs/000/000003', 'waiting', NULL, 0, NULL, 5, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.heatlens_items VALUES ('22222222222222222222222222222222', 0, 0, '0', 'store:22222222222222222222222222222222/inputs/000/000000', 'succeeded', 1, 0, '0000000000000000000000000000000000000000000000000000000000000000', 5, 0, 'cat', 2, 0.5, '{"model": {"name": "small", "weights_sha256": null, "weights": "random"}, "method": {"name": "gradcam", "parameters": {}, "class_specific": true, "fails_randomisation": false}, "layers": ["second"], "image": {"width": 32, "height": 24, "seen": {"left": 0.0, "top": 0.0, "right": 32.0, "bottom": 24.0}}, "predictions": [{"index": 2, "label": "cat", "probability": 0.5}], "explanations": [{"target": {"index": 2, "label": "cat", "score": 1.5, "probability": 0.5}, "versus": null, "map": {"min": 0.0, "max": 1.0, "mean": 0.5, "width": 7, "height": 7, "no_positive_evidence": false, "normalisation": "max", "completeness_gap": null}, "faithfulness": null, "stability": null, "artifacts": {"overlay": "000000.overlay.jpg", "map": "000000.map.png"}}], "artifacts": {}}', NULL, 1796051886.9809594);
INSERT INTO public.heatlens_jobs VALUES ('11111111111111111111111111111111', '127.0.0.1', 'finished', 'completed_with_errors', '{"method": "gradcam"}', NULL, NULL, 2, 2, 1, 2, 1, 0, 20, 1796051886.7723598, NULL, 1796051886.8599744, NULL, NULL, '');
INSERT INTO public.heatlens_jobs VALUES ('22222222222222222222222222222222', '127.0.0.1', 'under way', 'queued', '{"method": "gradcam"}', NULL, NULL, 4, 1, 0, 1, 2, 0, 20, 1796051886.923531, NULL, NULL, NULL, NULL, '');
INSERT INTO public.heatlens_kept VALUES ('kkkkkkkkkkkk', 'image', '127.0.0.1', NULL, NULL, '{"sha256": "0000000000000000000000000000000000000000000000000000000000000000"}', 5, 1800000000, 4000000000);
INSERT INTO public.heatlens_version VALUES (1);
SELECT pg_catalog.setval('public.heatlens_version_version_seq', 1, false);
ALTER TABLE ONLY dbos.application_versions
    ADD CONSTRAINT application_versions_pkey PRIMARY KEY (version_id);
ALTER TABLE ONLY dbos.application_versions
    ADD CONSTRAINT application_versions_version_name_key UNIQUE (version_name);
ALTER TABLE ONLY dbos.dbos_migrations
    ADD CONSTRAINT dbos_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY dbos.event_dispatch_kv
    ADD CONSTRAINT event_dispatch_kv_pkey PRIMARY KEY (service_name, workflow_fn_name, key);
ALTER TABLE ONLY dbos.notifications
    ADD CONSTRAINT notifications_pkey PRIMARY KEY (message_uuid);
ALTER TABLE ONLY dbos.operation_outputs
    ADD CONSTRAINT operation_outputs_pkey PRIMARY KEY (workflow_uuid, function_id);
ALTER TABLE ONLY dbos.queues
    ADD CONSTRAINT queues_name_key UNIQUE (name);
ALTER TABLE ONLY dbos.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (queue_id);
ALTER TABLE ONLY dbos.streams
    ADD CONSTRAINT streams_pkey PRIMARY KEY (workflow_uuid, key, "offset");
ALTER TABLE ONLY dbos.workflow_events_history
    ADD CONSTRAINT workflow_events_history_pkey PRIMARY KEY (workflow_uuid, function_id, key);
ALTER TABLE ONLY dbos.workflow_events
    ADD CONSTRAINT workflow_events_pkey PRIMARY KEY (workflow_uuid, key);
ALTER TABLE ONLY dbos.workflow_input
    ADD CONSTRAINT workflow_input_pkey PRIMARY KEY (workflow_uuid);
ALTER TABLE ONLY dbos.workflow_output
    ADD CONSTRAINT workflow_output_pkey PRIMARY KEY (workflow_uuid);
ALTER TABLE ONLY dbos.workflow_schedules
    ADD CONSTRAINT workflow_schedules_pkey PRIMARY KEY (schedule_id);
ALTER TABLE ONLY dbos.workflow_schedules
    ADD CONSTRAINT workflow_schedules_schedule_name_key UNIQUE (schedule_name);
ALTER TABLE ONLY dbos.workflow_status
    ADD CONSTRAINT workflow_status_pkey PRIMARY KEY (workflow_uuid);
ALTER TABLE ONLY public.heatlens_items
    ADD CONSTRAINT heatlens_items_pkey PRIMARY KEY (job_id, number);
ALTER TABLE ONLY public.heatlens_jobs
    ADD CONSTRAINT heatlens_jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.heatlens_kept
    ADD CONSTRAINT heatlens_kept_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.heatlens_version
    ADD CONSTRAINT heatlens_version_pkey PRIMARY KEY (version);
CREATE INDEX idx_application_versions_owner_timestamp ON dbos.application_versions USING btree (application_name, version_timestamp DESC);
CREATE INDEX idx_application_versions_timestamp ON dbos.application_versions USING btree (version_timestamp DESC);
CREATE INDEX idx_operation_outputs_completed_at_function_name_v2 ON dbos.operation_outputs USING btree (completed_at_epoch_ms, function_name) INCLUDE (application_name);
CREATE INDEX idx_operation_outputs_retention ON dbos.operation_outputs USING btree (retention_timestamp);
CREATE INDEX idx_workflow_input_retention ON dbos.workflow_input USING btree (retention_timestamp);
CREATE INDEX idx_workflow_output_retention ON dbos.workflow_output USING btree (retention_timestamp);
CREATE INDEX idx_workflow_status_attributes ON dbos.workflow_status USING gin (attributes) WHERE (attributes IS NOT NULL);
CREATE INDEX idx_workflow_status_completed_at ON dbos.workflow_status USING btree (completed_at) WHERE (completed_at IS NOT NULL);
CREATE INDEX idx_workflow_status_deadline ON dbos.workflow_status USING btree (workflow_deadline_epoch_ms) WHERE ((status = ANY (ARRAY['ENQUEUED'::text, 'PENDING'::text, 'DELAYED'::text])) AND (workflow_deadline_epoch_ms IS NOT NULL));
CREATE INDEX idx_workflow_status_delayed ON dbos.workflow_status USING btree (delay_until_epoch_ms) WHERE (status = 'DELAYED'::text);
CREATE INDEX idx_workflow_status_failed ON dbos.workflow_status USING btree (status, created_at) WHERE (status = ANY (ARRAY['ERROR'::text, 'CANCELLED'::text, 'MAX_RECOVERY_ATTEMPTS_EXCEEDED'::text]));
CREATE INDEX idx_workflow_status_forked_from ON dbos.workflow_status USING btree (forked_from) WHERE (forked_from IS NOT NULL);
CREATE INDEX idx_workflow_status_in_flight_v2 ON dbos.workflow_status USING btree (queue_name, status, priority, created_at) INCLUDE (application_name) WHERE (status = ANY (ARRAY['ENQUEUED'::text, 'PENDING'::text]));
CREATE INDEX idx_workflow_status_parent_workflow_id ON dbos.workflow_status USING btree (parent_workflow_id) WHERE (parent_workflow_id IS NOT NULL);
CREATE INDEX idx_workflow_status_partition_dequeue_v3 ON dbos.workflow_status USING btree (queue_name, status, queue_partition_key, priority, created_at, workflow_uuid) INCLUDE (application_name) WHERE ((status = ANY (ARRAY['ENQUEUED'::text, 'PENDING'::text])) AND (queue_partition_key IS NOT NULL));
CREATE INDEX idx_workflow_status_pending ON dbos.workflow_status USING btree (created_at) WHERE (status = 'PENDING'::text);
CREATE INDEX idx_workflow_status_rate_limited ON dbos.workflow_status USING btree (queue_name, started_at_epoch_ms) WHERE (rate_limited = true);
CREATE INDEX idx_workflow_status_schedule_name ON dbos.workflow_status USING btree (schedule_name) WHERE (schedule_name IS NOT NULL);
CREATE INDEX idx_workflow_status_started_at ON dbos.workflow_status USING btree (started_at_epoch_ms) WHERE (started_at_epoch_ms IS NOT NULL);
CREATE INDEX idx_workflow_topic ON dbos.notifications USING btree (destination_uuid, topic);
CREATE UNIQUE INDEX uq_application_versions_owner_version ON dbos.application_versions USING btree (application_name, version_name) WHERE (application_name IS NOT NULL);
CREATE UNIQUE INDEX uq_application_versions_unclaimed_version ON dbos.application_versions USING btree (version_name) WHERE (application_name IS NULL);
CREATE UNIQUE INDEX uq_workflow_status_dedup_id ON dbos.workflow_status USING btree (queue_name, deduplication_id) WHERE (deduplication_id IS NOT NULL);
CREATE INDEX workflow_status_created_at_index ON dbos.workflow_status USING btree (created_at);
CREATE INDEX heatlens_items_by_event ON public.heatlens_items USING btree (job_id, event);
CREATE INDEX heatlens_items_by_shard ON public.heatlens_items USING btree (job_id, shard, status);
CREATE INDEX heatlens_jobs_by_age ON public.heatlens_jobs USING btree (created_at, id);
CREATE UNIQUE INDEX heatlens_jobs_by_key ON public.heatlens_jobs USING btree (owner, idempotency_key);
CREATE INDEX heatlens_kept_by_expiry ON public.heatlens_kept USING btree (expires_at);
CREATE INDEX heatlens_kept_by_image ON public.heatlens_kept USING btree (image_id);
CREATE INDEX heatlens_kept_by_owner ON public.heatlens_kept USING btree (owner, size_bytes);
CREATE TRIGGER dbos_notifications_trigger AFTER INSERT ON dbos.notifications FOR EACH ROW EXECUTE FUNCTION dbos.notifications_function();
ALTER TABLE ONLY dbos.notifications
    ADD CONSTRAINT notifications_destination_uuid_fkey FOREIGN KEY (destination_uuid) REFERENCES dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY dbos.streams
    ADD CONSTRAINT streams_workflow_uuid_fkey FOREIGN KEY (workflow_uuid) REFERENCES dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY dbos.workflow_events_history
    ADD CONSTRAINT workflow_events_history_workflow_uuid_fkey FOREIGN KEY (workflow_uuid) REFERENCES dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY dbos.workflow_events
    ADD CONSTRAINT workflow_events_workflow_uuid_fkey FOREIGN KEY (workflow_uuid) REFERENCES dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY public.heatlens_items
    ADD CONSTRAINT heatlens_items_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.heatlens_jobs(id) ON DELETE CASCADE;
