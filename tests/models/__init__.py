"""Tests of models: `config` (config.json), `files` (model files), `program` (a step as data); text, whole models."""
