-- The schemas, and what the deployer remembers about the functions it deployed.

create schema gradient;
create schema graph;
create schema scheduler;

comment on schema gradient is
  'Gradient: tables, types, views, and the functions a person or a script calls.';
comment on schema graph is
  'Gradient, internal: what may start, what failed, what is known. Called by the servers.';
comment on schema scheduler is
  'Gradient, internal: offers, assignment, waiting, recovery. Called by the servers.';

create table gradient.deployment (
  singleton boolean primary key check (singleton),
  digest text not null,
  role_prefix text not null,
  server_version integer not null,
  deployed_at timestamptz not null
);

comment on table gradient.deployment is
  'What is deployed: one row, written by "gradient db deploy" in the transaction of the deployment.';
comment on column gradient.deployment.singleton is 'Always true: the table has one row.';
comment on column gradient.deployment.digest is
  'SHA-256 over the functions folder, the applied migrations, the roles and the server''s major version.';
comment on column gradient.deployment.server_version is
  'Major version of the PostgreSQL that the fingerprints were taken on.';

create table gradient.deployed_object (
  kind text not null check (kind in ('file', 'function', 'view', 'trigger')),
  identity text not null,
  name text not null,
  path text not null,
  sha256 text not null,
  fingerprint text not null,
  primary key (kind, identity)
);

comment on table gradient.deployed_object is
  'Every function, view and trigger that the deployer made, and every file it read. '
  '"gradient db verify" compares the fingerprints with what the database holds.';
comment on column gradient.deployed_object.identity is
  'Name with argument types for a function; schema.table.trigger for a trigger; the path for a file.';
comment on column gradient.deployed_object.name is
  'Schema-qualified name: what the overloads of a function share.';
comment on column gradient.deployed_object.path is 'The file below sql/functions that declares it.';
comment on column gradient.deployed_object.sha256 is 'Checksum of the text that declares it.';
comment on column gradient.deployed_object.fingerprint is
  'MD5 of the definition as the server prints it, taken after the deployment.';
