"""Load for any OpenAI endpoint: sessions -> intended times -> requests -> samples -> a row.

    sessions = interleaved(generated_chats(ChatSpec(), seed), times, live=40, seed=seed)
    driven = await drive(Target(url), sessions, Pacing(seconds=60), model="m")
    row = row_of(keep(driven, Stage(rate=8), warm_up=10, seconds=60), Slo())

`generated` says what a session is, gives it times, and makes some, as `datasets` does; `drive`
sends them through `client`, `answers` reads what comes back; `measured` says what it means, how
sure that is, and when it means nothing. `plan` has the flags of the command, and `run` the command.
"""
