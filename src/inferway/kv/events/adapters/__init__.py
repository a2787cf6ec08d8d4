"""An engine's form of KV events -> `event.Batch`. One file for each engine has an `EventAdapter`;
what reads the engine's messages (`fleet`) hands it their payloads."""
