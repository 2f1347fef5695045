"""Sequences and partitions as Spark columns: the same rules as in ``processing.sequencing``, for data frames of events.

Runs on the driver, once per query: columns are built there and computed on executors. Nothing has to pickle.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sf


def subject_level_column(subject: Column, level: int) -> Column:
    """Return the first ``level`` levels, at least 1, of a column of subjects.

    The plain form is ``opencqrs_py.processing.sequencing.cut_subject``; a test keeps them consistent.

    Raises:
        ValueError: If ``level`` is below 1.
    """
    if level < 1:
        raise ValueError(f"level must be at least 1, got {level}")
    kept = sf.slice(sf.split(subject, "/", -1), 2, level)
    return sf.concat_ws("", sf.transform(kept, lambda part: sf.concat(sf.lit("/"), part)))


def residue_column(sequence_id: Column, modulus: int) -> Column:
    """Return the residue of the partition, ``0..modulus - 1``, to which each sequence of a column of texts belongs.

    The plain form is ``opencqrs_py.model.residue_of``; a test keeps them consistent.

    Raises:
        ValueError: If ``modulus`` is below 1.

    Source:
        OpenCQRS default partition resolver: CRC-32 of UTF-8, modulo the number of partitions.
    """
    if modulus < 1:
        raise ValueError(f"modulus must be at least 1, got {modulus}")
    return sf.crc32(sf.encode(sequence_id, "UTF-8")) % sf.lit(modulus)
