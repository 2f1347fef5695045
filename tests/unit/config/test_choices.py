import pytest

from opencqrs_py.config.choices import Controller, DataFormat, Engine, Resolution, RetryPolicy, Tracking


@pytest.mark.parametrize(
    ("choice", "text", "member"),
    [
        (Controller, "leader_election", Controller.LEADER_ELECTION),
        (Controller, "leader-election", Controller.LEADER_ELECTION),
        (Controller, "LEADER_ELECTION", Controller.LEADER_ELECTION),
        (Controller, "leaderElection", Controller.LEADER_ELECTION),
        (Controller, " Application Context ".strip().replace(" ", "-"), Controller.APPLICATION_CONTEXT),
        (Tracking, "sql", Tracking.SQL),
        (Tracking, "JDBC", Tracking.SQL),
        (Tracking, "in-memory", Tracking.IN_MEMORY),
        (Resolution, "PerSecondLevelSubject", Resolution.PER_SECOND_LEVEL_SUBJECT),
        (Resolution, "per-level-subject", Resolution.PER_LEVEL_SUBJECT),
        (Resolution, "perDataField", Resolution.PER_DATA_FIELD),
        (Resolution, "PER_METADATA_KEY", Resolution.PER_METADATA_KEY),
        (DataFormat, "Envelope", DataFormat.ENVELOPE),
        (RetryPolicy, "exponential-backoff", RetryPolicy.EXPONENTIAL_BACKOFF),
        (Engine, " Spark ", Engine.SPARK),
    ],
)
def test_choices_are_accepted_in_every_spelling(choice, text, member):
    assert choice(text) is member


@pytest.mark.parametrize("value", ["nope", "", None, 3])
def test_other_values_are_refused(value):
    with pytest.raises(ValueError, match="is not a valid Tracking"):
        Tracking(value)
